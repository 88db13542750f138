/* Writing the trace file (recorder_file.h).
 *
 * A write that fails (no space, a limit on file sizes, a broken disk) ends the file: a partly written block is removed, and a
 * block with the reason is appended if there is room for it. */
#define _GNU_SOURCE
#include "recorder_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

/* The build passes the versions it builds for; 0 means not known. */
#ifndef MAYA_TORCH_VERSION
#define MAYA_TORCH_VERSION 0
#endif
#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 0
#endif

enum { PATH_BYTES = 4096 + 64 };

static int descriptor = -1;
static dev_t file_device; /* which file `descriptor` was when it was opened */
static ino_t file_inode;
static off_t whole_bytes; /* of the file: up to here it consists of whole blocks */
static bool is_forked_child;
static char path[PATH_BYTES];

/* crc_tables[0] advances a CRC-32 (zlib's) by one byte; crc_tables[n] does the same with n zero bytes after it, so that
 * eight bytes take eight independent lookups. */
static uint32_t crc_tables[8][256];

static void prepare_checksums(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_tables[0][byte] = crc;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_tables[zeros - 1][byte];
            crc_tables[zeros][byte] = crc >> 8 ^ crc_tables[0][crc & 0xFF];
        }
}

static uint32_t checksum(uint32_t so_far, const void *data, size_t length) {
    const uint8_t *byte = data;
    uint32_t crc = ~so_far;
    for (; length >= 8; length -= 8, byte += 8) {
        uint64_t word;
        memcpy(&word, byte, sizeof word);
        word ^= crc;
        crc = 0;
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) crc ^= crc_tables[7 - i][word >> 8 * i & 0xFF];
    }
    for (; length; length--, byte++) crc = crc >> 8 ^ crc_tables[0][(crc ^ *byte) & 0xFF];
    return ~crc;
}

/* The program may close descriptors it did not open (daemons do) and get the number again for a file of its own. */
static bool descriptor_is_still_ours(void) {
    struct stat status;
    return fstat(descriptor, &status) == 0 && status.st_dev == file_device && status.st_ino == file_inode;
}

/* A write beyond the limit on file sizes, or to a pipe without a reader, sends the thread a signal that could kill the program.
 * Blocks it, so that the write only returns the error. */
static void hold_signals(sigset_t *held, sigset_t *before) {
    sigemptyset(held);
    sigaddset(held, SIGXFSZ);
    sigaddset(held, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    if (sigismember(&pending, SIGXFSZ)) sigdelset(held, SIGXFSZ); /* the program's own, which it holds back itself */
    if (sigismember(&pending, SIGPIPE)) sigdelset(held, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, held, before);
}

static void release_signals(const sigset_t *held, const sigset_t *before, bool may_be_pending) {
    while (may_be_pending && sigtimedwait(held, NULL, &(struct timespec){0}) > 0) continue;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* 0, or the error. */
static int write_pieces(struct iovec *pieces, int count) {
    sigset_t held, before;
    int error = 0;
    hold_signals(&held, &before);
    while (count && !error) {
        ssize_t written = writev(descriptor, pieces, count);
        if (written < 0) {
            error = errno == EINTR ? 0 : errno;
            continue;
        }
        while (count && (size_t)written >= pieces->iov_len) {
            written -= (ssize_t)pieces->iov_len;
            pieces++, count--;
        }
        if (count) {
            pieces->iov_base = (char *)pieces->iov_base + written;
            pieces->iov_len -= (size_t)written;
        }
    }
    release_signals(&held, &before, error != 0);
    return error;
}

static maya_trace_block_header header_of(maya_block_kind kind, uint32_t count, const struct iovec *pieces, int piece_count) {
    maya_trace_block_header header = {.magic = MAYA_TRACE_BLOCK_MAGIC, .kind = kind, .count = count};
    for (int i = 0; i < piece_count; i++) header.bytes += (uint32_t)pieces[i].iov_len;
    size_t checked = offsetof(maya_trace_block_header, kind);
    header.checksum = checksum(0, (const char *)&header + checked, sizeof header - checked);
    for (int i = 0; i < piece_count; i++) header.checksum = checksum(header.checksum, pieces[i].iov_base, pieces[i].iov_len);
    return header;
}

/* Leaves whole blocks, the last of which gives the reason for the end. */
static void end_early(int error) {
    if (descriptor < 0) /* the program has closed it */
        descriptor = open(path, O_WRONLY | O_CLOEXEC);
    if (!descriptor_is_still_ours()) return;
    if (ftruncate(descriptor, whole_bytes) < 0 || lseek(descriptor, whole_bytes, SEEK_SET) < 0 || whole_bytes == 0) return;
    maya_trace_cut cut = {.error = (uint32_t)error};
    struct iovec pieces[2] = {{0}, {&cut, sizeof cut}};
    maya_trace_block_header header = header_of(MAYA_BLOCK_CUT, 0, pieces + 1, 1);
    pieces[0] = (struct iovec){&header, sizeof header};
    if (write_pieces(pieces, 2) != 0 && ftruncate(descriptor, whole_bytes) < 0)
        return; /* the reader then finds a truncated block */
}

static bool stop(const char *what, int error) {
    maya_message(
        "cannot %s the trace file %s: %s. The trace ends here; the program and its clocks continue. The folder of the file "
        "(maya-torchrun --out) must exist and have free space",
        what, path, strerror(error));
    maya_trace_file_close();
    return false;
}

static bool write_all(struct iovec *pieces, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += pieces[i].iov_len;
    if (!descriptor_is_still_ours()) descriptor = -1;
    int error = descriptor < 0 ? EBADF : write_pieces(pieces, count);
    if (error) {
        end_early(error);
        return stop("write", error);
    }
    whole_bytes += (off_t)bytes;
    return true;
}

/* "rank0.trace" becomes "rank0.child-4711.trace". */
static void name_after_process(void) {
    const char *whole = maya_get_settings()->trace_path;
    const char *slash = strrchr(whole, '/');
    const char *base = slash ? slash + 1 : whole;
    const char *dot = strrchr(base, '.');
    int stem = (int)(dot && dot > base ? dot - whole : (ptrdiff_t)strlen(whole));
    snprintf(path, sizeof path, "%.*s.child-%d%s", stem, whole, (int)getpid(), whole + stem);
}

/* The descriptor of an emptied file of ours, or -1 and errno; EWOULDBLOCK while another process records into it. */
static int open_locked(void) {
    int opened = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (opened >= 0 && opened <= STDERR_FILENO) { /* the program has closed its standard streams and may still write to them */
        int moved = fcntl(opened, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        close(opened);
        opened = moved;
    }
    if (opened < 0) return -1;
    int error = 0;
    if (flock(opened, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) /* else: a file system without locks */
        error = errno;
    else if (ftruncate(opened, 0) < 0 && errno != EINVAL) /* EINVAL: a pipe or a device */ error = errno;
    if (error) {
        close(opened);
        errno = error;
        return -1;
    }
    return opened;
}

bool maya_trace_file_is_open(void) { return descriptor >= 0; }

bool maya_trace_file_open(uint64_t started_ns) {
    const maya_settings *settings = maya_get_settings();
    if (is_forked_child) name_after_process();
    else snprintf(path, sizeof path, "%s", settings->trace_path);
    descriptor = open_locked();
    if (descriptor < 0 && errno == EWOULDBLOCK) { /* a child process inherited the setting */
        name_after_process();
        descriptor = open_locked();
    }
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status) < 0) return stop("open", errno);
    file_device = status.st_dev;
    file_inode = status.st_ino;
    whole_bytes = 0;

    prepare_checksums();
    maya_trace_header header = {
        .magic = MAYA_TRACE_MAGIC,
        .version = MAYA_TRACE_VERSION,
        .rank = settings->rank,
        .process = (uint32_t)getpid(),
        .torch_version = MAYA_TORCH_VERSION,
        .cuda_version = MAYA_CUDA_VERSION,
        .started_ns = started_ns,
    };
    snprintf(header.gpu, sizeof header.gpu, "%s", settings->device.name);
    size_t checked = offsetof(maya_trace_header, rank);
    header.checksum = checksum(0, (const char *)&header + checked, sizeof header - checked);
    return write_all(&(struct iovec){&header, sizeof header}, 1);
}

bool maya_trace_file_append(maya_block_kind kind, uint32_t count, const struct iovec *pieces, int piece_count) {
    struct iovec all[1 + MAYA_BLOCK_PIECES];
    maya_trace_block_header header = header_of(kind, count, pieces, piece_count);
    memcpy(all + 1, pieces, (size_t)piece_count * sizeof *pieces);
    all[0] = (struct iovec){&header, sizeof header};
    return write_all(all, 1 + piece_count);
}

void maya_trace_file_close(void) {
    if (descriptor >= 0) close(descriptor);
    descriptor = -1;
}

void maya_trace_file_leave_to_parent(void) {
    maya_trace_file_close();
    is_forked_child = true;
}

void maya_trace_file_is_ours(void) {
    maya_trace_file_close();
    is_forked_child = false;
}
