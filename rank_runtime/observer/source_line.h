// The line of the user's Python code that the calling thread runs.
#pragma once

#include <cstddef>

namespace maya {

// Writes "file.py:12", or an empty text if no frame of the thread belongs to the user's code.
void find_source_line(char* line, size_t size);

}  // namespace maya
