/* Element arithmetic on NCCL's data types: raw bytes in, raw bytes out.
 *
 * A product of two fp16, bf16 or fp32 numbers is exact in double precision, so rounding it once to the element type
 * gives the bits the device would. Integers wrap, as on the device. The 8-bit float types are left out. */

#include "nccl_internal.h"

#include <math.h>
#include <string.h>

size_t nccl_type_size(nccl_type type) {
    static const unsigned char sizes[NCCL_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

static double double_of_half(uint16_t bits) {
    int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    double magnitude;
    if (exponent == 0x1f) magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0) magnitude = ldexp(fraction, -24);
    else magnitude = ldexp(fraction | 0x400, exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static uint16_t half_of_double(double value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    if (isnan(value)) return sign | 0x7e00;
    if (magnitude >= 65520) return sign | 0x7c00;
    int exponent;
    frexp(magnitude, &exponent);
    if (exponent < -13) exponent = -13; /* subnormal numbers have the spacing of the smallest normal ones */
    uint16_t units = (uint16_t)nearbyint(ldexp(magnitude, 11 - exponent));
    /* `units` has 11 bits for a normal number; a carry out of them moves into the exponent by itself. */
    return sign | (uint16_t)(units < 0x400 ? units : units + ((exponent + 13) << 10));
}

static double double_of_bfloat(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t bfloat_of_double(double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double load_float(const void *element, nccl_type type) {
    uint16_t half;
    float single;
    double value;
    switch (type) {
    case NCCL_FLOAT16:
        memcpy(&half, element, sizeof half);
        return double_of_half(half);
    case NCCL_BFLOAT16:
        memcpy(&half, element, sizeof half);
        return double_of_bfloat(half);
    case NCCL_FLOAT32:
        memcpy(&single, element, sizeof single);
        return single;
    default:
        memcpy(&value, element, sizeof value);
        return value;
    }
}

static void store_float(void *element, double value, nccl_type type) {
    uint16_t half;
    float single;
    switch (type) {
    case NCCL_FLOAT16:
        half = half_of_double(value);
        memcpy(element, &half, sizeof half);
        break;
    case NCCL_BFLOAT16:
        half = bfloat_of_double(value);
        memcpy(element, &half, sizeof half);
        break;
    case NCCL_FLOAT32:
        single = (float)value;
        memcpy(element, &single, sizeof single);
        break;
    default:
        memcpy(element, &value, sizeof value);
    }
}

bool nccl_scale(void *target, const void *source, const void *scalar, size_t count, nccl_type type) {
    size_t size = nccl_type_size(type);
    if (type <= NCCL_UINT64) {
        /* The low bytes of a product do not depend on signs or on what is above them. */
        uint64_t factor = 0, value = 0;
        memcpy(&factor, scalar, size);
        for (size_t i = 0; i < count; i++) {
            memcpy(&value, (const char *)source + i * size, size);
            value *= factor;
            memcpy((char *)target + i * size, &value, size);
        }
        return true;
    }
    if (type == NCCL_FLOAT8_E4M3 || type == NCCL_FLOAT8_E5M2) return false;
    double factor = load_float(scalar, type);
    for (size_t i = 0; i < count; i++) {
        store_float((char *)target + i * size, load_float((const char *)source + i * size, type) * factor, type);
    }
    return true;
}
