// Call sites of collectives: a number for every Python stack that calls one, and the stack as text for the coordinator.
//
// The stack is read when torch's op begins, before torch takes the locks under which it calls NCCL: taking the GIL there could
// wait for a thread that waits for these locks. Threads that run no Python, such as autograd's, have no call site.

#include "call_sites.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../shim/device/internal.h"
#include "python_api.h"

namespace maya {
namespace {

constexpr size_t kMostSiteFrames = 64, kMostSiteText = 16 << 10, kMostCallSites = 1 << 16;

// A place in the bytecode. The code objects of known places are never freed, so that their addresses stay theirs.
struct FramePlace {
  PyObject* code;
  int instruction;
  bool operator==(const FramePlace& other) const { return code == other.code && instruction == other.instruction; }
};

struct FramePlacesHash {
  size_t operator()(const std::vector<FramePlace>& places) const {
    size_t value = 1469598103934665603u;
    for (const FramePlace& place : places) {
      value = (value ^ reinterpret_cast<size_t>(place.code)) * 1099511628211u;
      value = (value ^ static_cast<size_t>(place.instruction)) * 1099511628211u;
    }
    return value;
  }
};

struct CallSite {
  maya_python_site shown{};
  std::string text;
};

struct CallSites {
  std::mutex lock;
  std::unordered_map<std::vector<FramePlace>, std::unique_ptr<CallSite>, FramePlacesHash> known;
};

CallSites& call_sites() {
  static CallSites& made = *new CallSites;
  return made;
}

void append_attribute(const Python& python, PyObject* owner, const char* attribute, std::string& text) {
  PyObject* value = python.get_attribute(owner, attribute);
  const char* content = value != nullptr ? python.as_text(value) : nullptr;
  if (content != nullptr) text += content;
  if (value != nullptr) python.release(value);
}

// "file<TAB>line<TAB>function", one line for each frame, innermost first.
std::string text_of_site(const Python& python, PyObject* innermost) {
  std::string text;
  PyObject* frame = innermost;
  python.retain(frame);
  for (size_t depth = 0; frame != nullptr; depth++) {
    PyObject* code = python.frame_code(frame);
    if (depth < kMostSiteFrames && text.size() < kMostSiteText) {
      append_attribute(python, code, "co_filename", text);
      text += '\t' + std::to_string(python.frame_line(frame)) + '\t';
      append_attribute(python, code, "co_name", text);
      text += '\n';
    }
    python.release(code);
    PyObject* outer = python.frame_back(frame);
    python.release(frame);
    frame = outer;
  }
  return text;
}

// Reads the stack; the places keep a reference to their code objects. Call with the GIL held.
std::vector<FramePlace> places_of(const Python& python, PyObject* innermost) {
  std::vector<FramePlace> places;
  places.reserve(kMostSiteFrames);
  PyObject* frame = innermost;
  python.retain(frame);
  while (frame != nullptr && places.size() < kMostSiteFrames) {
    places.push_back({python.frame_code(frame), python.frame_instruction(frame)});
    PyObject* outer = python.frame_back(frame);
    python.release(frame);
    frame = outer;
  }
  if (frame != nullptr) python.release(frame);
  return places;
}

CallSite* site_of(const Python& python, PyObject* innermost) {
  std::vector<FramePlace> places = places_of(python, innermost);
  CallSites& all = call_sites();
  CallSite* found = nullptr;
  bool is_full = false;
  {
    const std::lock_guard<std::mutex> guard(all.lock);
    const auto known = all.known.find(places);
    if (known != all.known.end()) found = known->second.get();
    is_full = all.known.size() >= kMostCallSites;
  }
  if (found != nullptr || is_full) {
    for (const FramePlace& place : places) python.release(place.code);
    return found;
  }
  auto made = std::make_unique<CallSite>();
  made->text = text_of_site(python, innermost);
  const std::lock_guard<std::mutex> guard(all.lock);
  made->shown.number = static_cast<int64_t>(all.known.size()) + 1;
  made->shown.text = made->text.data();
  made->shown.size = made->text.size();
  return all.known.emplace(std::move(places), std::move(made)).first->second.get();
}

}  // namespace

void collective_begins() {
  maya_thread* thread = maya_this_thread();
  thread->call_site = nullptr;
  const Python& python = Python::get();
  if (!python.usable() || python.thread_state() == nullptr) return;
  const int state = python.gil_ensure();
  PyObject* frame = python.current_frame();
  if (frame != nullptr) {
    CallSite* site = site_of(python, frame);
    if (site != nullptr) thread->call_site = &site->shown;
  }
  python.clear_error();
  python.gil_release(state);
}

void collective_ends() { maya_this_thread()->call_site = nullptr; }

}  // namespace maya
