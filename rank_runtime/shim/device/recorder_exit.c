/* _exit, so that a process that ends without running exit handlers (os._exit, every forked child of multiprocessing)
 * still completes its collectives (drain.c) and ends its trace and its connection to the coordinator. In: the exit status. Out:
 * none, the process ends.
 *
 * This library is preloaded, so the program's calls arrive here. In a process that did not record, _exit ends it at once. */
#include <sys/syscall.h>
#include <unistd.h>

#include "device.h"
#include "process.h"
#include "recorder.h"

MAYA_API _Noreturn void _exit(int status) {
    maya_drain_at_exit(status);
    maya_faults_end();
    maya_client_end();
    maya_record_end();
    for (;;) syscall(SYS_exit_group, status);
}

MAYA_API _Noreturn void _Exit(int status) { _exit(status); }
