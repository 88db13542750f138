"""The values of ncclResult_t that the coordinator answers with."""

SYSTEM_ERROR = 2
INVALID_ARGUMENT = 4
INVALID_USAGE = 5
