/* Announces process groups to the coordinator of a job with absent ranks (rank_runtime/zygote/process_groups.py). */

#include "coordinator_client.h"

#include <string.h>

/* `members` has the ranks of the job in the order of the group. Returns NULL, or why there is no connection. */
MAYA_API const char *maya_announce_group(const char *name, const char *description, int64_t *members, size_t count) {
    const char *problem = maya_client_connect(NULL);
    if (problem != NULL) return problem;
    maya_process_group message = {
        .name = {name, strlen(name)},
        .description = {description, strlen(description)},
        .members = {members, count},
    };
    maya_pack_process_group(maya_outgoing_begin(), &message);
    maya_outgoing_end(NULL, 0);
    maya_outgoing_send();
    return NULL;
}
