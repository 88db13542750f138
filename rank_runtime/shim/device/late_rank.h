/* Ranks that appear: below `maya exec`, every process has virtual GPUs, and one becomes a rank when it first uses a GPU.
 *
 * Asking for the number or the properties of the GPUs is not using them: launchers and the parents of ranks also do that. A
 * process first uses a GPU when it creates a context. From then on it has a trace, a virtual clock and a connection to the
 * coordinator. Its place (rank, world size) may become known before that or later, from three sources; the first that knows it
 * decides, except that the program's own statement comes before environment variables:
 *
 *   the program              maya_set_place, from torch's default process group (rank_runtime/zygote/default_group.py)
 *   environment variables    of torchrun, Open MPI, MPICH, MVAPICH or Slurm
 *   a communicator           ncclCommInitRank
 *
 * A forked child of a rank is no rank, as in other jobs. */
#pragma once

#include "device.h"

/* true: the process may become a rank, but is none yet. Nothing is recorded until then. */
MAYA_API bool maya_waits_to_appear(void);
/* The process uses a GPU. */
void maya_appear(void);
/* Tells the coordinator the place, if it is known; called when the connection is made. */
void maya_send_place(void);
/* The process joins a communicator that no other process can contribute several members to. */
MAYA_API void maya_place_by_communicator(int member, int ranks, const uint64_t key[2]);
