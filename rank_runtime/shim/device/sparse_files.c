/* write, pwrite and writev, so that placeholders that a program saves take no time and no room on the disk: large zeros that
 * are written to a regular file become a hole, which reads as zeros. In: the program's calls; this library is preloaded. Out:
 * the same calls, or a file that is as long as if the zeros had been written. */

#define _GNU_SOURCE
#include "host_values.h"
#include "internal.h"
#include "process.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WORTH_A_HOLE = 1 << 20 };

/* Only private memory of ours is searched by its pages; other memory would have to be read. */
static bool is_hole(const void *bytes, size_t size) {
    return size >= WORTH_A_HOLE && maya_host_makes_placeholders(size) && maya_host_is_tracked(bytes, size) &&
           maya_host_is_zero(bytes, size);
}

static void say_once(void) {
    static _Atomic bool said;
    if (!said && maya_get_settings()->rank == 0)
        maya_message(
            "saved placeholders are holes in their files: the files are as long as real ones and read as zeros, but "
            "take no room on the disk (--host-tensors real writes them in full)");
    said = true;
}

static void *real_function(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

/* Makes [offset, offset + size) of the file zeros without writing them. */
static bool make_hole(int file, off_t offset, size_t size) {
    struct stat status;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    off_t end = offset + (off_t)size;
    if (offset < status.st_size && fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)size) != 0) {
        return false;
    }
    return end <= status.st_size || ftruncate(file, end) == 0;
}

MAYA_API ssize_t write(int file, const void *bytes, size_t size) {
    if (size >= WORTH_A_HOLE && is_hole(bytes, size)) {
        int before = errno, flags = fcntl(file, F_GETFL);
        off_t offset = lseek(file, 0, flags >= 0 && (flags & O_APPEND) ? SEEK_END : SEEK_CUR);
        if (offset >= 0 && make_hole(file, offset, size) && lseek(file, offset + (off_t)size, SEEK_SET) >= 0) {
            say_once();
            errno = before;
            return (ssize_t)size;
        }
        errno = before;
    }
    static ssize_t (*real)(int, const void *, size_t);
    if (real == NULL) real = (ssize_t (*)(int, const void *, size_t))real_function("write");
    return real(file, bytes, size);
}

static ssize_t write_at(int file, const void *bytes, size_t size, off_t offset) {
    if (size >= WORTH_A_HOLE && is_hole(bytes, size)) {
        int before = errno;
        bool done = make_hole(file, offset, size);
        errno = before;
        if (done) say_once();
        if (done) return (ssize_t)size;
    }
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (real == NULL) real = (ssize_t (*)(int, const void *, size_t, off_t))real_function("pwrite");
    return real(file, bytes, size, offset);
}

MAYA_API ssize_t pwrite(int file, const void *bytes, size_t size, off_t offset) { return write_at(file, bytes, size, offset); }

MAYA_API ssize_t pwrite64(int file, const void *bytes, size_t size, off_t offset) {
    return write_at(file, bytes, size, offset);
}

/* libstdc++ writes its buffer and the caller's bytes in one call. */
MAYA_API ssize_t writev(int file, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    bool has_hole = false;
    for (int i = 0; i < count; i++) has_hole = has_hole || is_hole(parts[i].iov_base, parts[i].iov_len);
    if (real == NULL) real = (ssize_t (*)(int, const struct iovec *, int))real_function("writev");
    if (!has_hole) return real(file, parts, count);
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t written = write(file, parts[i].iov_base, parts[i].iov_len);
        if (written < 0) return total > 0 ? total : -1;
        total += written;
        if ((size_t)written < parts[i].iov_len) break;
    }
    return total;
}
