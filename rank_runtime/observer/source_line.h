// Where in the user's Python code the calling thread is.
#pragma once

#include <cstddef>

namespace maya {

// Writes "file.py:12", or nothing if the thread runs no Python code of the user's.
void find_source_line(char* line, size_t size);

}  // namespace maya
