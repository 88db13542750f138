/* Device attributes, one by one. */

#include "attributes.h"

#include <stdio.h>
#include <stdlib.h>

int maya_device_attribute(int attribute) {
    const maya_device_properties *device = &maya_get_settings()->device;
    /* clang-format off */
    switch (attribute) {
        case 1: return 1024;                        /* threads per block */
        case 2: case 3: return 1024;                /* block dimensions */
        case 4: return 64;
        case 5: return 2147483647;                  /* grid dimensions */
        case 6: case 7: return 65535;
        case 8: return (int)device->shared_per_block;
        case 9: return 65536;                       /* constant memory */
        case 10: return 32;                         /* warp */
        case 11: return 2147483647;                 /* pitch */
        case 12: return 65536;                      /* registers per block */
        case 13: return device->clock_khz;
        case 14: return 512;                        /* texture alignment */
        case 15: return 1;                          /* copies overlap with kernels */
        case 16: return device->sm_count;
        case 17: case 18: case 20: return 0;        /* kernel timeout, integrated, compute mode */
        case 19: return 1;                          /* maps host memory */
        case 21: case 22: return 131072;            /* textures and surfaces */
        case 23: return 65536;
        case 24: case 25: case 26: return 16384;
        case 27: case 28: return 32768;
        case 29: return 2048;
        case 30: return 512;
        case 31: case 32: return 1;                 /* concurrent kernels, ECC */
        case MAYA_ATTRIBUTE_PCI_BUS: return 1;
        case 34: case 35: case 50: return 0;        /* PCI device, TCC, PCI domain */
        case 36: return device->memory_clock_khz;
        case 37: return device->memory_bus_bits;
        case 38: return (int)device->l2_bytes;
        case 39: return device->max_threads_per_sm;
        case MAYA_ATTRIBUTE_ASYNC_ENGINES: return 3;
        case 41: return 1;                          /* unified addressing */
        case 51: return 32;                         /* texture pitch alignment */
        case 75: return device->compute_major;
        case 76: return device->compute_minor;
        case 78: case 79: case 80: return 1;        /* priorities, L1 */
        case 81: return (int)device->shared_per_sm;
        case 82: return device->registers_per_sm;
        case 83: return 1;                          /* managed memory */
        case 84: return 0;
        case 85: return 0;
        case 86: return 0;                          /* native atomics to the host */
        case 87: return 2;                          /* single to double ratio */
        case 88: return 0;                          /* pageable memory access */
        case 89: case 90: case 91: return 1;        /* concurrent managed access, preemption, registered pointers */
        case 92: case 93: case 94: return 1;        /* stream memory operations */
        case 95: case 96: return 1;                 /* cooperative launch */
        case 97: return (int)device->shared_per_block_optin;
        case 98: case 99: return 1;
        case 100: case 101: return 0;
        case 102: return 1;                         /* virtual memory management */
        case 103: return 1;                         /* POSIX file descriptor handles */
        case 104: case 105: return 0;
        case 106: return device->max_blocks_per_sm;
        case 107: return 0;                         /* compressible memory */
        case MAYA_ATTRIBUTE_PERSISTING_L2: return (int)(device->l2_bytes / 8 * 5);
        case MAYA_ATTRIBUTE_ACCESS_WINDOW: return 134213632;
        case 110: return 1;                         /* RDMA with virtual memory management */
        case 111: return (int)device->reserved_shared_per_block;
        case 112: case 113: case 114: case 115: case 116: case 117: return 1;
        case 118: return 100;
        case 119: return 1;                         /* pools exportable as file descriptors */
        case 120: return device->compute_major >= 9;/* clusters */
        case 121: case 125: return 1;               /* deferred mapping, interprocess events */
        case 122: case 123: return 1;               /* 64-bit stream memory operations, wait NOR */
        case 124: return 1;                         /* DMA-BUF */
        case 126: return 4;                         /* memory synchronisation domains */
        case 127: return 0;                         /* tensor map access */
        case 128: return 0;                         /* fabric handles: there is no fabric manager */
        case 129: return 1;                         /* unified function pointers */
        case 130: case 131: case 132: case 133: case 134: return 0; /* NUMA, multicast, MPS */
        default: break;
    }
    /* clang-format on */
    if (attribute >= 42 && attribute <= 77) return 32768; /* the remaining texture and surface limits */
    return attribute > 0 && attribute < 256 ? 0 : -1;
}

int maya_device_pci_bus(int physical_device) { return physical_device + 1; }

int maya_device_attribute_of(int device, int attribute) {
    if (attribute == MAYA_ATTRIBUTE_PCI_BUS) return maya_device_pci_bus(maya_visible_devices()->physical[device]);
    return maya_device_attribute(attribute);
}

/* Reads the node's number from the environment, because the settings do not have it. */
void maya_device_uuid(int physical_device, unsigned char uuid[16]) {
    const char *node_text = getenv("GROUP_RANK");
    uint64_t node = node_text ? strtoull(node_text, NULL, 10) + 1 : 1, device = (uint64_t)physical_device;
    uint64_t halves[2] = {(node << 8 | device) * 0x9E3779B97F4A7C15u, (node * 64 + device + 1) * 0xD1B54A32D192ED03u};
    for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(halves[i / 8] >> (i % 8 * 8));
}

void maya_device_uuid_text(int physical_device, char text[MAYA_UUID_TEXT]) {
    unsigned char uuid[16];
    maya_device_uuid(physical_device, uuid);
    int used = snprintf(text, MAYA_UUID_TEXT, "GPU");
    for (int i = 0; i < 16; i++) {
        bool group_begins = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        used += snprintf(text + used, (size_t)(MAYA_UUID_TEXT - used), "%s%02x", group_begins ? "-" : "", uuid[i]);
    }
}
