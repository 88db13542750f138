/* Device attributes; runtime (cudaDeviceAttr) and driver (CUdevice_attribute) use the same numbers. */
#pragma once

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MAYA_ATTRIBUTE_PCI_BUS = 33, /* of a visible device */
    MAYA_ATTRIBUTE_ASYNC_ENGINES = 40,
    MAYA_ATTRIBUTE_PERSISTING_L2 = 108,
    MAYA_ATTRIBUTE_ACCESS_WINDOW = 109,
};

/* The value of an attribute, or -1 for a number that no CUDA version defines. */
MAYA_API int maya_device_attribute(int attribute);
MAYA_API int maya_device_attribute_of(int device, int attribute);
/* By number in the node, not among the visible ones. Differs by device and by node, and is the same in every run. */
MAYA_API void maya_device_uuid(int physical_device, unsigned char uuid[16]);
enum { MAYA_UUID_TEXT = 41 };
/* "GPU-01234567-..." */
MAYA_API void maya_device_uuid_text(int physical_device, char text[MAYA_UUID_TEXT]);
MAYA_API int maya_device_pci_bus(int physical_device);

#ifdef __cplusplus
}
#endif
