// Op signatures. The text is made once per distinct combination; afterwards a hash of the numbers finds it.

#include "signature.h"

#include <c10/core/ScalarType.h>

#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "../shim/device/device.h"

namespace maya {
namespace {

// Two independent 64-bit hashes: with a few thousand signatures in a run, a collision is out of the question.
struct Fingerprint {
  uint64_t first = 0x9E3779B97F4A7C15ull, second = 0xD1B54A32D192ED03ull;

  void add(uint64_t value) {
    first = (first ^ value) * 0xFF51AFD7ED558CCDull;
    first ^= first >> 32;
    second = (second + value) * 0xC4CEB9FE1A85EC53ull;
    second ^= second >> 29;
  }
  void add(const TensorView& view) {
    add(static_cast<uint64_t>(view.dtype) | static_cast<uint64_t>(view.on_gpu()) << 8 | view.sizes.size() << 16);
    for (int64_t size : view.sizes) add(static_cast<uint64_t>(size));
    for (int64_t stride : view.strides) add(static_cast<uint64_t>(stride));
  }
  bool operator==(const Fingerprint& other) const { return first == other.first && second == other.second; }
};

struct FingerprintHash {
  size_t operator()(const Fingerprint& print) const { return print.first; }
};

Fingerprint fingerprint(const char* name, const std::vector<Argument>& arguments, size_t count) {
  Fingerprint print;
  print.add(reinterpret_cast<uintptr_t>(name));
  for (size_t i = 0; i < count; i++) {
    const Argument& argument = arguments[i];
    print.add(static_cast<uint64_t>(argument.kind) | argument.tensors.size() << 8 | argument.integers.size() << 32);
    print.add(static_cast<uint64_t>(argument.integer));
    for (const TensorView& view : argument.tensors) print.add(view);
    for (int64_t integer : argument.integers) print.add(static_cast<uint64_t>(integer));
    for (char c : argument.text) print.add(static_cast<uint64_t>(c));
  }
  return print;
}

const char* dtype_name(c10::ScalarType dtype) {
  // torch's own words, as in torch.float32
  switch (dtype) {
    case c10::ScalarType::Float: return "float32";
    case c10::ScalarType::Double: return "float64";
    case c10::ScalarType::Half: return "float16";
    case c10::ScalarType::BFloat16: return "bfloat16";
    case c10::ScalarType::Byte: return "uint8";
    case c10::ScalarType::Char: return "int8";
    case c10::ScalarType::Short: return "int16";
    case c10::ScalarType::Int: return "int32";
    case c10::ScalarType::Long: return "int64";
    case c10::ScalarType::Bool: return "bool";
    case c10::ScalarType::ComplexFloat: return "complex64";
    case c10::ScalarType::ComplexDouble: return "complex128";
    case c10::ScalarType::Float8_e4m3fn: return "float8_e4m3fn";
    case c10::ScalarType::Float8_e5m2: return "float8_e5m2";
    default: return c10::toString(dtype);
  }
}

void append(std::string& text, const int64_t* numbers, size_t count) {
  text += '[';
  for (size_t i = 0; i < count; i++) {
    if (i) text += ',';
    text += std::to_string(numbers[i]);
  }
  text += ']';
}

void append_quoted(std::string& text, std::string_view words) {
  text += '"';
  for (char c : words) {
    if (c == '"' || c == '\\') text += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) text += c;
  }
  text += '"';
}

void append(std::string& text, const TensorView& view) {
  text += "{\"shape\":";
  append(text, view.sizes.data(), view.sizes.size());
  text += ",\"dtype\":\"";
  text += dtype_name(view.dtype);
  text += '"';
  if (view.strided) {
    text += ",\"strides\":";
    append(text, view.strides.data(), view.strides.size());
  } else {
    text += ",\"layout\":\"not strided\"";
  }
  if (!view.on_gpu()) text += ",\"device\":\"cpu\"";
  text += '}';
}

void append(std::string& text, const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::kNone: text += "null"; break;
    case Argument::Kind::kTensor: append(text, argument.tensors[0]); break;
    case Argument::Kind::kTensorList:
      text += '[';
      for (size_t i = 0; i < argument.tensors.size(); i++) {
        if (i) text += ',';
        append(text, argument.tensors[i]);
      }
      text += ']';
      break;
    case Argument::Kind::kInteger: text += std::to_string(argument.integer); break;
    case Argument::Kind::kBool: text += argument.integer ? "true" : "false"; break;
    case Argument::Kind::kIntegerList: append(text, argument.integers.data(), argument.integers.size()); break;
    case Argument::Kind::kString: append_quoted(text, argument.text); break;
    case Argument::Kind::kFloat: text += "\"float\""; break;  // a learning rate would make every step's signature new
    case Argument::Kind::kOther: text += "\"other\""; break;
  }
}

}  // namespace

uint32_t op_signature(const char* name, const std::vector<Argument>& arguments, size_t count) {
  static std::mutex lock;
  static std::unordered_map<Fingerprint, uint32_t, FingerprintHash> known;
  const Fingerprint print = fingerprint(name, arguments, count);
  {
    std::lock_guard<std::mutex> guard(lock);
    auto found = known.find(print);
    if (found != known.end()) return found->second;
  }
  std::string text = "{\"op\":";
  append_quoted(text, name);
  text += ",\"inputs\":[";
  for (size_t i = 0; i < count; i++) {
    if (i) text += ',';
    append(text, arguments[i]);
  }
  text += "]}";
  const uint32_t number = maya_intern(text.data(), text.size());
  std::lock_guard<std::mutex> guard(lock);
  known.emplace(print, number);
  return number;
}

uint32_t name_signature(const char* name) {
  std::string text = "{\"op\":";
  append_quoted(text, name);
  text += '}';
  return maya_intern(text.data(), text.size());
}

}  // namespace maya
