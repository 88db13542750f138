/* Element arithmetic on NCCL's data types: raw bytes in, raw bytes out.
 *
 * A product of two 8-bit, fp16, bf16 or fp32 numbers is exact in double precision, so rounding it once to the element type
 * gives the bits the device would. Integers wrap, as on the device. */

#include "nccl_internal.h"

#include <math.h>
#include <string.h>

size_t nccl_type_size(nccl_type type) {
    static const unsigned char sizes[NCCL_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

/* A floating-point format of up to 16 bits. */
typedef struct {
    int fraction_bits, bias;
    unsigned infinity; /* magnitude bits of infinity, or of the largest number if the format has no infinity */
    unsigned nan;      /* magnitude bits */
    unsigned sign;
    bool has_infinity;
} format;

static const format half = {
    .fraction_bits = 10, .bias = 15, .infinity = 0x7c00, .nan = 0x7e00, .sign = 0x8000, .has_infinity = true};
/* A format without infinity: numbers above the largest, 448, become NaN. */
static const format e4m3 = {.fraction_bits = 3, .bias = 7, .infinity = 0x7e, .nan = 0x7f, .sign = 0x80};
static const format e5m2 = {.fraction_bits = 2, .bias = 15, .infinity = 0x7c, .nan = 0x7e, .sign = 0x80, .has_infinity = true};

static double double_of(unsigned bits, const format *format) {
    unsigned magnitude_bits = bits & (format->sign - 1);
    int exponent = (int)(magnitude_bits >> format->fraction_bits);
    double fraction = magnitude_bits & ((1u << format->fraction_bits) - 1), magnitude;
    if (format->has_infinity ? magnitude_bits > format->infinity : magnitude_bits == format->nan) magnitude = NAN;
    else if (format->has_infinity && magnitude_bits == format->infinity) magnitude = INFINITY;
    else if (exponent == 0) magnitude = ldexp(fraction, 1 - format->bias - format->fraction_bits);
    else magnitude = ldexp(fraction + (1 << format->fraction_bits), exponent - format->bias - format->fraction_bits);
    return bits & format->sign ? -magnitude : magnitude;
}

static unsigned bits_of(double value, const format *format) {
    unsigned sign = signbit(value) ? format->sign : 0;
    if (isnan(value)) return sign | format->nan;
    if (isinf(value)) return sign | (format->has_infinity ? format->infinity : format->nan);
    int exponent, lowest = 2 - format->bias;
    double magnitude = fabs(value);
    frexp(magnitude, &exponent);
    if (exponent < lowest) exponent = lowest; /* subnormal numbers have the spacing of the smallest normal ones */
    unsigned long units = (unsigned long)nearbyint(ldexp(magnitude, format->fraction_bits + 1 - exponent));
    /* A normal number has fraction_bits + 1 bits in `units`; a carry out of them adds to the exponent bits. */
    unsigned long bits = units;
    if (units >= 1u << format->fraction_bits) bits += (unsigned long)(exponent - lowest) << format->fraction_bits;
    if (bits > format->infinity) bits = format->has_infinity ? format->infinity : format->nan;
    return sign | (unsigned)bits;
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

static const format *small_format(nccl_type type) {
    switch (type) {
        case NCCL_FLOAT16: return &half;
        case NCCL_FLOAT8_E4M3: return &e4m3;
        case NCCL_FLOAT8_E5M2: return &e5m2;
        default: return NULL;
    }
}

static double load_float(const void *element, nccl_type type) {
    uint16_t bits = 0;
    float single;
    double value;
    const format *format = small_format(type);
    if (format || type == NCCL_BFLOAT16) {
        memcpy(&bits, element, nccl_type_size(type));
        return format ? double_of(bits, format) : double_of_bfloat(bits);
    }
    if (type == NCCL_FLOAT32) {
        memcpy(&single, element, sizeof single);
        return single;
    }
    memcpy(&value, element, sizeof value);
    return value;
}

static void store_float(void *element, double value, nccl_type type) {
    const format *format = small_format(type);
    if (format || type == NCCL_BFLOAT16) {
        uint16_t bits = format ? (uint16_t)bits_of(value, format) : bfloat_of_double(value);
        memcpy(element, &bits, nccl_type_size(type));
    } else if (type == NCCL_FLOAT32) {
        float single = (float)value;
        memcpy(element, &single, sizeof single);
    } else {
        memcpy(element, &value, sizeof value);
    }
}

void nccl_scale(void *target, const void *source, const void *scalar, size_t count, nccl_type type) {
    size_t size = nccl_type_size(type);
    if (type <= NCCL_UINT64) {
        /* The low bytes of a product do not depend on signs or on higher bytes. */
        uint64_t factor = 0, value = 0;
        memcpy(&factor, scalar, size);
        for (size_t i = 0; i < count; i++) {
            memcpy(&value, (const char *)source + i * size, size);
            value *= factor;
            memcpy((char *)target + i * size, &value, size);
        }
        return;
    }
    double factor = load_float(scalar, type);
    for (size_t i = 0; i < count; i++) {
        store_float((char *)target + i * size, load_float((const char *)source + i * size, type) * factor, type);
    }
}
