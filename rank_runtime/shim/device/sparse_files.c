/* write, pwrite and writev, so that placeholders that a program saves take no time and no room on the disk: large zeros that
 * are written to a regular file become a hole, which reads as zeros. In: the program's calls; this library is preloaded. Out:
 * the same calls, or a file that is as long as if the zeros had been written, with an attribute that says whether its holes
 * are placeholders (hole_reads.c).
 *
 * Programs also write copies of tensors (a checkpoint that was put together in memory). Zeros in them are recognised as well,
 * and count as placeholders, because nobody knows where they come from. */

#define _GNU_SOURCE
#include "sparse_files.h"

#include "host_values.h"
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { STEP = 4096 };

typedef ssize_t (*write_function)(int file, const void *bytes, size_t size);
typedef ssize_t (*pwrite_function)(int file, const void *bytes, size_t size, off_t offset);

void *maya_next_function(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

static void say_once(void) {
    static _Atomic bool said;
    if (!said && maya_get_settings()->rank == 0)
        maya_message(
            "saved placeholders are holes in their files: the files are as long as real ones and read as zeros, but "
            "take no room on the disk (--host-tensors real writes them in full)");
    said = true;
}

/* ---- zeros ---- */

/* A stretch of a buffer, either worth a hole or not. */
typedef struct {
    size_t size;
    bool is_hole;
} stretch;

static bool step_is_zero(const char *bytes, size_t size) {
    return bytes[0] == 0 && (size == 1 || memcmp(bytes, bytes + 1, size - 1) == 0);
}

static size_t zeros_at(const char *bytes, size_t size) {
    size_t end = 0;
    while (end < size && step_is_zero(bytes + end, size - end < STEP ? size - end : STEP)) end += STEP;
    return end < size ? end : size;
}

/* Only private memory of ours is searched by its pages; other memory has to be read. */
static stretch first_stretch(const char *bytes, size_t size) {
    if (size >= MAYA_WORTH_A_HOLE && maya_host_is_tracked(bytes, size) && maya_host_is_zero(bytes, size)) {
        return (stretch){size, true};
    }
    size_t zeros = zeros_at(bytes, size);
    if (zeros >= MAYA_WORTH_A_HOLE) return (stretch){zeros, true};
    for (size_t start = zeros; start < size; start += zeros + STEP) {
        zeros = zeros_at(bytes + start, size - start);
        if (zeros >= MAYA_WORTH_A_HOLE) return (stretch){start, false};
    }
    return (stretch){size, false};
}

static bool may_have_hole(int file, size_t size) {
    struct stat status;
    return size >= MAYA_WORTH_A_HOLE && maya_host_makes_placeholders(size) && fstat(file, &status) == 0 &&
           S_ISREG(status.st_mode);
}

/* Makes [offset, offset + size) of the file zeros without writing them. */
static bool make_hole(int file, const char *bytes, off_t offset, size_t size) {
    struct stat status;
    if (fstat(file, &status) != 0) return false;
    off_t end = offset + (off_t)size;
    if (offset < status.st_size && fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)size) != 0) {
        return false;
    }
    if (end > status.st_size && ftruncate(file, end) != 0) return false;
    if (maya_host_is_tracked(bytes, size) && !maya_host_has_placeholder(bytes, size)) return true;
    fsetxattr(file, MAYA_HOLES_ATTRIBUTE, "", 0, 0); /* without attributes they are read as known zeros */
    say_once();
    return true;
}

/* ---- writes ---- */

static ssize_t write_part(int file, const char *bytes, stretch part) {
    static write_function real;
    if (part.is_hole) {
        int flags = fcntl(file, F_GETFL);
        off_t offset = lseek(file, 0, flags >= 0 && (flags & O_APPEND) ? SEEK_END : SEEK_CUR);
        bool done = offset >= 0 && make_hole(file, bytes, offset, part.size);
        if (done && lseek(file, offset + (off_t)part.size, SEEK_SET) >= 0) return (ssize_t)part.size;
    }
    if (real == NULL) real = (write_function)maya_next_function("write");
    return real(file, bytes, part.size);
}

static ssize_t pwrite_part(int file, const char *bytes, stretch part, off_t offset) {
    static pwrite_function real;
    if (part.is_hole && make_hole(file, bytes, offset, part.size)) return (ssize_t)part.size;
    if (real == NULL) real = (pwrite_function)maya_next_function("pwrite");
    return real(file, bytes, part.size, offset);
}

MAYA_API ssize_t write(int file, const void *bytes, size_t size) {
    int before = errno;
    if (size < MAYA_WORTH_A_HOLE || !may_have_hole(file, size)) {
        errno = before;
        return write_part(file, bytes, (stretch){size, false});
    }
    size_t done = 0;
    while (done < size) {
        stretch part = first_stretch((const char *)bytes + done, size - done);
        errno = before;
        ssize_t written = write_part(file, (const char *)bytes + done, part);
        if (written < 0 && done == 0) return -1;
        if (written <= 0) break;
        done += (size_t)written;
        if ((size_t)written < part.size) break;
    }
    errno = before;
    return (ssize_t)done;
}

static ssize_t write_at(int file, const void *bytes, size_t size, off_t offset) {
    int before = errno;
    if (size < MAYA_WORTH_A_HOLE || !may_have_hole(file, size)) {
        errno = before;
        return pwrite_part(file, bytes, (stretch){size, false}, offset);
    }
    size_t done = 0;
    while (done < size) {
        stretch part = first_stretch((const char *)bytes + done, size - done);
        errno = before;
        ssize_t written = pwrite_part(file, (const char *)bytes + done, part, offset + (off_t)done);
        if (written < 0 && done == 0) return -1;
        if (written <= 0) break;
        done += (size_t)written;
        if ((size_t)written < part.size) break;
    }
    errno = before;
    return (ssize_t)done;
}

MAYA_API ssize_t pwrite(int file, const void *bytes, size_t size, off_t offset) { return write_at(file, bytes, size, offset); }

MAYA_API ssize_t pwrite64(int file, const void *bytes, size_t size, off_t offset) {
    return write_at(file, bytes, size, offset);
}

/* libstdc++ writes its buffer and the caller's bytes in one call. */
MAYA_API ssize_t writev(int file, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    bool is_large = false;
    for (int i = 0; i < count; i++) is_large = is_large || parts[i].iov_len >= MAYA_WORTH_A_HOLE;
    if (real == NULL) real = (ssize_t (*)(int, const struct iovec *, int))maya_next_function("writev");
    if (!is_large || !may_have_hole(file, MAYA_WORTH_A_HOLE)) return real(file, parts, count);
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t written = write(file, parts[i].iov_base, parts[i].iov_len);
        if (written < 0) return total > 0 ? total : -1;
        total += written;
        if ((size_t)written < parts[i].iov_len) break;
    }
    return total;
}
