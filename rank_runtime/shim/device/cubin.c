/* Reading cubins. The code of a kernel `k` is the section ".text.k", whose header carries the number of registers in the
 * top byte of sh_info; its static shared memory is the size of ".nv.shared.k"; ".nv.info.k" is a list of attributes, of
 * which number 0x17 describes a parameter. ".debug_line" maps code to source lines in the format of DWARF 2 to 4, and
 * ".nv_debug_ptx_txt" is the PTX text; both describe all kernels of the cubin together. */

#define _GNU_SOURCE
#include "cubin.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

static const Elf64_Ehdr *header_of(const void *image) {
    const Elf64_Ehdr *header = image;
    enum { EM_CUDA_MACHINE = 190 };
    bool is_cubin = memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == ELFCLASS64 &&
                    header->e_machine == EM_CUDA_MACHINE;
    return is_cubin ? header : NULL;
}

static const Elf64_Shdr *section(const Elf64_Ehdr *header, unsigned index) {
    return (const Elf64_Shdr *)((const char *)header + header->e_shoff + (size_t)index * header->e_shentsize);
}

size_t maya_cubin_size(const void *image) {
    const Elf64_Ehdr *header = header_of(image);
    if (header == NULL) return 0;
    size_t end = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
    size_t programs_end = header->e_phoff + (size_t)header->e_phnum * header->e_phentsize;
    if (programs_end > end) end = programs_end;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *part = section(header, i);
        if (part->sh_type != SHT_NOBITS && part->sh_offset + part->sh_size > end) end = part->sh_offset + part->sh_size;
    }
    return end;
}

/* An attribute is a format byte, a number byte and 16 bits that are its value or, in format 4, the size of what follows. */
static void read_parameters(const unsigned char *info, size_t size, maya_cubin_kernel *kernel) {
    enum { SIZED = 4, PARAMETER = 0x17 };
    for (size_t at = 0; at + 4 <= size;) {
        uint16_t length, ordinal;
        uint32_t packed;
        memcpy(&length, info + at + 2, sizeof length);
        if (info[at] == SIZED && info[at + 1] == PARAMETER && length >= 12 && at + 16 <= size) {
            memcpy(&ordinal, info + at + 8, sizeof ordinal);
            memcpy(&packed, info + at + 12, sizeof packed);
            if (ordinal < MAYA_PARAMETERS) {
                kernel->parameter_bytes[ordinal] = (uint16_t)(packed >> 18);
                if (kernel->parameters <= ordinal) kernel->parameters = ordinal + 1;
            }
        }
        at += 4 + (info[at] == SIZED ? length : 0);
    }
}

/* ---- the first row of a line table ---- */

typedef struct {
    const unsigned char *at, *end;
} reader;

static unsigned next_byte(reader *from) { return from->at < from->end ? *from->at++ : 0; }

static uint64_t next_unsigned(reader *from) {
    uint64_t value = 0;
    for (int shift = 0; from->at < from->end; shift += 7) {
        unsigned byte = next_byte(from);
        if (shift < 64) value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) break;
    }
    return value;
}

static int64_t next_signed(reader *from) {
    uint64_t value = 0;
    int shift = 0;
    unsigned byte = 0;
    do {
        byte = next_byte(from);
        if (shift < 64) value |= (uint64_t)(byte & 0x7F) << shift;
        shift += 7;
    } while (byte >= 0x80 && from->at < from->end);
    if (shift < 64 && byte & 0x40) value |= UINT64_MAX << shift;
    return (int64_t)value;
}

/* NULL when the section ends before the text does. */
static const char *next_text(reader *from) {
    const char *text = (const char *)from->at;
    const unsigned char *zero = memchr(from->at, 0, (size_t)(from->end - from->at));
    from->at = zero ? zero + 1 : from->end;
    return zero ? text : NULL;
}

typedef struct {
    int line_base;
    unsigned line_range, opcode_base;
    const unsigned char *operands; /* of each standard opcode, how many */
} line_header;

/* Which file and line the program's first row names; false if it has none. */
static bool first_row(reader program, const line_header *header, uint64_t *file, int64_t *line) {
    enum { EXTENDED = 0, COPY = 1, ADVANCE_LINE = 3, SET_FILE = 4, FIXED_ADVANCE = 9, END_SEQUENCE = 1 };
    *file = 1;
    *line = 1;
    while (program.at < program.end) {
        unsigned opcode = next_byte(&program);
        if (opcode >= header->opcode_base) {
            *line += header->line_base + (int)((opcode - header->opcode_base) % header->line_range);
            return true;
        }
        if (opcode == COPY) return true;
        if (opcode == EXTENDED) {
            uint64_t length = next_unsigned(&program);
            if (length == 0 || length > (uint64_t)(program.end - program.at) || *program.at == END_SEQUENCE) return false;
            program.at += length;
        } else if (opcode == ADVANCE_LINE) {
            *line += next_signed(&program);
        } else if (opcode == SET_FILE) {
            *file = next_unsigned(&program);
        } else if (opcode == FIXED_ADVANCE) {
            next_byte(&program);
            next_byte(&program);
        } else {
            for (unsigned i = 0; i < header->operands[opcode - 1]; i++) next_unsigned(&program);
        }
    }
    return false;
}

static void read_source(const unsigned char *table, size_t size, maya_cubin_kernel *kernel) {
    enum { HEADER = 10 }; /* bytes up to and with the header's length: length, version, length of the rest */
    uint32_t unit_bytes, header_bytes;
    uint16_t version;
    if (size < HEADER) return;
    memcpy(&unit_bytes, table, sizeof unit_bytes);
    memcpy(&version, table + 4, sizeof version);
    memcpy(&header_bytes, table + 6, sizeof header_bytes);
    if (version < 2 || version > 4 || unit_bytes > size - 4 || header_bytes > size - HEADER) return;
    reader from = {table + HEADER, table + HEADER + header_bytes}, program = {from.end, table + 4 + unit_bytes};
    from.at += version >= 4 ? 3 : 2; /* shortest instruction, (operations of one,) is a statement */
    line_header header = {.line_base = (signed char)next_byte(&from)};
    header.line_range = next_byte(&from);
    header.opcode_base = next_byte(&from);
    header.operands = from.at;
    uint64_t file;
    int64_t line;
    if (header.line_range == 0 || header.opcode_base == 0 || header.opcode_base > (size_t)(from.end - from.at)) return;
    if (!first_row(program, &header, &file, &line)) return;
    from.at += header.opcode_base - 1;
    for (const char *folder = next_text(&from); folder && *folder;) folder = next_text(&from);
    for (uint64_t number = 1; from.at < from.end; number++) {
        const char *name = next_text(&from);
        if (name == NULL || *name == 0) return;
        for (int i = 0; i < 3; i++) next_unsigned(&from); /* folder, time, size */
        if (number != file) continue;
        const char *slash = strrchr(name, '/');
        snprintf(kernel->source, sizeof kernel->source, "%s", slash ? slash + 1 : name);
        kernel->line = (int)line;
        return;
    }
}

static bool has_matrix_instructions(const void *text, size_t size) {
    static const char *const instructions[] = {"mma.sync", "wgmma.mma_async", "tcgen05.mma"};
    for (size_t i = 0; i < sizeof instructions / sizeof *instructions; i++) {
        if (memmem(text, size, instructions[i], strlen(instructions[i]))) return true;
    }
    return false;
}

bool maya_cubin_find(const void *image, const char *name, maya_cubin_kernel *kernel) {
    const Elf64_Ehdr *header = header_of(image);
    const char *names = (const char *)image + section(header, header->e_shstrndx)->sh_offset;
    bool found = false;
    int kernels = 0;
    memset(kernel, 0, sizeof *kernel); /* padding included: kernels are compared byte by byte */
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *part = section(header, i);
        const char *part_name = names + part->sh_name;
        const unsigned char *content = (const unsigned char *)image + part->sh_offset;
        if (strncmp(part_name, ".text.", 6) == 0) kernels++;
        if (strncmp(part_name, ".text.", 6) == 0 && strcmp(part_name + 6, name) == 0) {
            kernel->registers = (int)(part->sh_info >> 24);
            found = true;
        } else if (strncmp(part_name, ".nv.shared.", 11) == 0 && strcmp(part_name + 11, name) == 0) {
            kernel->shared_bytes = (int)part->sh_size;
        } else if (strncmp(part_name, ".nv.info.", 9) == 0 && strcmp(part_name + 9, name) == 0) {
            read_parameters(content, part->sh_size, kernel);
        } else if (strcmp(part_name, ".debug_line") == 0) {
            read_source(content, part->sh_size, kernel);
        } else if (strcmp(part_name, ".nv_debug_ptx_txt") == 0) {
            kernel->tensor_cores = has_matrix_instructions(content, part->sh_size);
        }
    }
    if (kernels != 1) { /* which of them the debug information begins with is not known */
        kernel->source[0] = 0;
        kernel->line = 0;
        kernel->tensor_cores = false;
    }
    return found;
}
