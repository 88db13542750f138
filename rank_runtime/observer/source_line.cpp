// The line of the user's Python code that the calling thread runs: its innermost frame outside torch and outside Maya's
// functions that wrap torch's (rank_runtime/absent_members, rank_runtime/zygote).

#include "source_line.h"

#include <cstdio>
#include <cstring>

#include "python_api.h"

namespace maya {
namespace {

bool is_users(const char* file) {
  return std::strstr(file, "/torch/") == nullptr && std::strncmp(file, "<frozen", 7) != 0 &&
         std::strstr(file, "/contextlib.py") == nullptr &&
         std::strstr(file, "/rank_runtime/absent_members/") == nullptr &&
         std::strstr(file, "/rank_runtime/zygote/") == nullptr;
}

}  // namespace

void find_source_line(char* line, size_t size) {
  line[0] = '\0';
  const Python& python = Python::get();
  if (!python.usable()) return;
  python.visit_frames([&](PyObject* frame, const char* file) {
    if (!is_users(file)) return false;
    std::snprintf(line, size, "%.480s:%d", file, python.frame_line(frame));
    return true;
  });
  // The text becomes part of a JSON string.
  for (char* c = line; *c != '\0'; c++) {
    if (*c == '"' || *c == '\\' || static_cast<unsigned char>(*c) < 0x20) *c = '?';
  }
}

}  // namespace maya
