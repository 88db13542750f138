/* Reading cubins. The code of a kernel `k` is the section ".text.k", whose header carries the number of registers in the
 * top byte of sh_info; its static shared memory is the size of ".nv.shared.k"; ".nv.info.k" is a list of attributes, of
 * which number 0x17 describes a parameter. */

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

bool maya_cubin_find(const void *image, const char *name, maya_cubin_kernel *kernel) {
    const Elf64_Ehdr *header = header_of(image);
    const char *names = (const char *)image + section(header, header->e_shstrndx)->sh_offset;
    bool found = false;
    memset(kernel, 0, sizeof *kernel);
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *part = section(header, i);
        const char *part_name = names + part->sh_name;
        if (strncmp(part_name, ".text.", 6) == 0 && strcmp(part_name + 6, name) == 0) {
            kernel->registers = (int)(part->sh_info >> 24);
            found = true;
        } else if (strncmp(part_name, ".nv.shared.", 11) == 0 && strcmp(part_name + 11, name) == 0) {
            kernel->shared_bytes = (int)part->sh_size;
        } else if (strncmp(part_name, ".nv.info.", 9) == 0 && strcmp(part_name + 9, name) == 0) {
            read_parameters((const unsigned char *)image + part->sh_offset, part->sh_size, kernel);
        }
    }
    return found;
}
