// Choices among placeholder scores: which experts a router sends a token to.
//
// The scores of topk, sort, argmax, argmin, max and min along a dimension are placeholders in a large model, but programs size
// buffers and sends by what they choose. So the chosen indices follow a rule: distinct in each row, and spread evenly over the
// alternatives, or skewed (--moe-skew). They depend on nothing but the shape, so all ranks choose alike, and a recomputation
// chooses the same again. The results are known, and marked as following from an assumption.
//
// In: an op's call. Out: its results in memory, and CHOICE records before the host reads something that follows from them.
#pragma once

#include "compute.h"

namespace maya {

// Whether the program has reached an op that may choose by rule. The op itself may still wait for its turn in the stream.
bool choices_exist();
// Whether the op chooses among floating-point scores in GPU memory, so that it may have to choose by rule.
bool may_choose(const Operator& op, c10::ArrayRef<const c10::IValue> inputs);
// Notes where the program chooses, for the record; returns the place's number.
int place_of_choice(const Operator& op, c10::ArrayRef<const c10::IValue> inputs);
// The mark of that place on memory (shim/device/routing.h).
uint32_t mark_of_place(int place);
// The choices with these marks route (routed_ops.h); records the places for which that is new.
void place_routes(uint32_t marks);
// Writes the results of a call that chooses. `scores_known`: its scores follow from earlier choices, so they count, and the
// rule decides between equal ones only.
void choose_by_rule(const Call& call, bool scores_known);
// Records the choices made since their last record.
void record_choices();

}  // namespace maya
