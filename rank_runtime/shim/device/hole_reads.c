/* read, pread and fread, so that a checkpoint of placeholders is loaded without reading them: where a large host tensor is
 * read from a hole of a file, its pages stay untouched. In: the program's calls; this library is preloaded. Out: the same
 * bytes; those of a hole that sparse_files.c has made of placeholders are placeholders again, others are known zeros.
 *
 * A hole ends at blocks of the file system, so the zeros at its ends are read. */

#define _GNU_SOURCE
#include "host_values.h"
#include "internal.h"
#include "sparse_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

typedef ssize_t (*read_function)(int file, void *bytes, size_t size);
typedef ssize_t (*pread_function)(int file, void *bytes, size_t size, off_t offset);
typedef size_t (*fread_function)(void *bytes, size_t size, size_t count, FILE *file);

/* Whether the read fills a large host tensor. */
static bool fills_tensor(const void *bytes, size_t size) {
    return size >= MAYA_WORTH_A_HOLE && maya_host_makes_placeholders(size) && maya_host_is_tracked(bytes, size);
}

/* The first hole of [start, end) that is worth skipping, clipped to it. false: there is none. */
static bool find_hole(int file, off_t start, off_t end, off_t *hole, off_t *hole_end) {
    for (off_t from = start; from < end; from = *hole_end) {
        *hole = lseek(file, from, SEEK_HOLE);
        if (*hole < 0 || *hole >= end) return false;
        *hole_end = lseek(file, *hole, SEEK_DATA);
        if (*hole_end < 0 && errno != ENXIO) return false;
        if (*hole_end < 0 || *hole_end > end) *hole_end = end; /* the file ends in a hole */
        if (*hole_end - *hole >= (off_t)MAYA_WORTH_A_HOLE) return true;
    }
    return false;
}

/* A file descriptor with an offset of its own, because threads may share that of the program. */
static int open_again(int file) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* Marks the hole [hole, hole_end) of bytes that end at `end`. A hole consists of whole blocks, so zeros on both sides belong to
 * it as well. Those before it may have come with an earlier read: libstdc++ uses up its buffer first. */
static void mark_hole(char *hole, char *hole_end, const char *end, bool is_placeholder) {
    enum { BLOCK = 4096 };
    char *start = hole, *first = hole - BLOCK;
    maya_host_set_zero(hole, (size_t)(hole_end - hole));
    if (!is_placeholder) return;
    if (!maya_host_is_tracked(first, BLOCK)) first = (char *)((uintptr_t)hole & ~(uintptr_t)(BLOCK - 1));
    while (start > first && start[-1] == 0) start--;
    for (const char *last = hole_end + BLOCK; hole_end < end && hole_end < last && *hole_end == 0;) hole_end++;
    maya_host_set_placeholder(start, (size_t)(hole_end - start));
}

/* Reads [from, end) of the file to bytes. false: an error, or the file has become shorter. */
static bool read_whole(int file, char *bytes, off_t from, off_t end) {
    static pread_function real;
    if (real == NULL) real = (pread_function)maya_next_function("pread");
    maya_host_set_known(bytes, (size_t)(end - from));
    while (from < end) {
        ssize_t got = real(file, bytes, (size_t)(end - from), from);
        if (got <= 0) return false;
        from += got;
        bytes += got;
    }
    return true;
}

/* Fills bytes from [offset, offset + size) without reading holes. -1: there are none, or an error. */
static ssize_t fill_around_holes(int file, char *bytes, size_t size, off_t offset) {
    const off_t end = offset + (off_t)size;
    const bool is_placeholder = fgetxattr(file, MAYA_HOLES_ATTRIBUTE, NULL, 0) >= 0;
    off_t hole, hole_end = offset, next_hole, next_end;
    if (!find_hole(file, offset, end, &hole, &hole_end)) return -1;
    if (!read_whole(file, bytes, offset, hole)) return -1;
    for (;; hole = next_hole, hole_end = next_end) {
        if (!find_hole(file, hole_end, end, &next_hole, &next_end)) next_hole = next_end = end;
        if (!read_whole(file, bytes + (hole_end - offset), hole_end, next_hole)) return -1;
        mark_hole(bytes + (hole - offset), bytes + (hole_end - offset), bytes + size, is_placeholder);
        if (next_hole == end) return (ssize_t)size;
    }
}

/* -1: the caller reads as usual. */
static ssize_t read_around_holes(int file, char *bytes, size_t size, off_t offset) {
    struct stat status;
    if (offset < 0 || fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || offset >= status.st_size) return -1;
    if (status.st_size - offset < (off_t)size) size = (size_t)(status.st_size - offset);
    int own = open_again(file);
    if (own < 0) return -1;
    ssize_t got = fill_around_holes(own, bytes, size, offset);
    close(own);
    return got;
}

MAYA_API ssize_t read(int file, void *bytes, size_t size) {
    static read_function real;
    if (fills_tensor(bytes, size)) {
        int before = errno;
        off_t offset = lseek(file, 0, SEEK_CUR);
        ssize_t got = read_around_holes(file, bytes, size, offset);
        errno = before;
        if (got >= 0 && lseek(file, offset + got, SEEK_SET) >= 0) return got;
        maya_host_set_known(bytes, size);
    }
    if (real == NULL) real = (read_function)maya_next_function("read");
    return real(file, bytes, size);
}

static ssize_t read_at(int file, void *bytes, size_t size, off_t offset) {
    static pread_function real;
    if (fills_tensor(bytes, size)) {
        int before = errno;
        ssize_t got = read_around_holes(file, bytes, size, offset);
        errno = before;
        if (got >= 0) return got;
        maya_host_set_known(bytes, size);
    }
    if (real == NULL) real = (pread_function)maya_next_function("pread");
    return real(file, bytes, size, offset);
}

MAYA_API ssize_t pread(int file, void *bytes, size_t size, off_t offset) { return read_at(file, bytes, size, offset); }

MAYA_API ssize_t pread64(int file, void *bytes, size_t size, off_t offset) { return read_at(file, bytes, size, offset); }

/* Inside libc, fread calls no function that could be interposed. */
MAYA_API size_t fread(void *bytes, size_t size, size_t count, FILE *file) {
    static fread_function real;
    if (fills_tensor(bytes, size * count)) {
        int before = errno;
        off_t offset = fflush(file) == 0 ? ftello(file) : -1;
        ssize_t got = read_around_holes(fileno(file), bytes, size * count, offset);
        errno = before;
        if (got == (ssize_t)(size * count) && fseeko(file, offset + got, SEEK_SET) == 0) return count;
        maya_host_set_known(bytes, size * count);
    }
    if (real == NULL) real = (fread_function)maya_next_function("fread");
    return real(bytes, size, count, file);
}
