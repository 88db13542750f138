/* The backend interface: descriptors are created, filled with attributes, finalized, read, executed and destroyed. */
#include "cudnn_backend.h"

/* The target of a cudnnBackendDescriptor_t. */
typedef struct {
    backend_body *body;
} backend_descriptor;

/* ---- the attribute store ---- */

static size_t element_size(int type) {
    switch (type) {
        case TYPE_HANDLE:
        case TYPE_POINTER:
        case TYPE_DESCRIPTOR: return sizeof(void *);
        case TYPE_INT64:
        case TYPE_DOUBLE: return 8;
        case TYPE_FRACTION: return 16; /* numerator and denominator */
        case TYPE_BOOLEAN:
        case TYPE_CHAR: return 1;
        default: return type >= TYPE_HANDLE && type <= TYPE_GRAPH_MODE ? 4 : 0; /* enums, int32, float */
    }
}

backend_body *backend_body_create(int kind) {
    backend_body *body = calloc(1, sizeof *body);
    if (body) {
        body->kind = kind;
        atomic_init(&body->references, 1);
    }
    return body;
}

static backend_body *body_retain(backend_body *body) {
    atomic_fetch_add_explicit(&body->references, 1, memory_order_relaxed);
    return body;
}

static void attribute_clear(backend_attribute *attribute) {
    backend_body **bodies = attribute->values;
    for (int64_t index = 0; attribute->type == TYPE_DESCRIPTOR && index < attribute->count; index++)
        backend_body_release(bodies[index]);
    free(attribute->values);
}

void backend_body_release(backend_body *body) {
    if (!body || atomic_fetch_sub_explicit(&body->references, 1, memory_order_acq_rel) > 1) return;
    for (size_t index = 0; index < body->attributes.count; index++) attribute_clear(&body->attributes.items[index]);
    maya_vector_clear(&body->attributes);
    maya_vector_clear(&body->plan.tensor_ids);
    free(body);
}

/* The attribute's entry: an existing one, whose values are freed, or a new one. The caller sets all of it. */
static backend_attribute *make_place(backend_body *body, int name) {
    for (size_t index = 0; index < body->attributes.count; index++)
        if (body->attributes.items[index].name == name) {
            attribute_clear(&body->attributes.items[index]);
            return &body->attributes.items[index];
        }
    return maya_vector_add(&body->attributes);
}

/* `values` that are descriptors are stored as bodies; each gets a reference. */
dnn_status backend_set(backend_body *body, int name, int type, int64_t count, const void *values) {
    size_t size = (size_t)count * element_size(type);
    void *copy = malloc(size ? size : 1);
    if (!copy) return dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "no memory for attribute %d", name);
    if (size) memcpy(copy, values, size);
    *make_place(body, name) = (backend_attribute){.name = name, .type = type, .count = count, .values = copy};
    backend_body **bodies = copy;
    for (int64_t index = 0; type == TYPE_DESCRIPTOR && index < count; index++) body_retain(bodies[index]);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- readers ---- */

const backend_attribute *backend_find(const backend_body *body, int name) {
    for (size_t index = 0; body && index < body->attributes.count; index++)
        if (body->attributes.items[index].name == name) return &body->attributes.items[index];
    return NULL;
}

int64_t backend_count(const backend_body *body, int name) {
    const backend_attribute *attribute = backend_find(body, name);
    return attribute ? attribute->count : 0;
}

const backend_body *backend_child_at(const backend_body *body, int name, int64_t index) {
    const backend_attribute *attribute = backend_find(body, name);
    if (!attribute || attribute->type != TYPE_DESCRIPTOR || index >= attribute->count) return NULL;
    backend_body *const *bodies = attribute->values;
    return bodies[index];
}

const backend_body *backend_child(const backend_body *body, int name) { return backend_child_at(body, name, 0); }

const int64_t *backend_int64s(const backend_body *body, int name, int64_t *count) {
    const backend_attribute *attribute = backend_find(body, name);
    bool usable = attribute && attribute->type == TYPE_INT64 && attribute->count > 0;
    *count = usable ? attribute->count : 0;
    return usable ? attribute->values : NULL;
}

int64_t backend_int64(const backend_body *body, int name) {
    int64_t count;
    const int64_t *values = backend_int64s(body, name, &count);
    return values ? values[0] : 0;
}

int backend_enum(const backend_body *body, int name) {
    const backend_attribute *attribute = backend_find(body, name);
    if (!attribute || attribute->count < 1 || element_size(attribute->type) != sizeof(int)) return -1;
    return *(const int *)attribute->values;
}

bool backend_flag(const backend_body *body, int name) {
    const backend_attribute *attribute = backend_find(body, name);
    return attribute && attribute->type == TYPE_BOOLEAN && attribute->count > 0 && *(const bool *)attribute->values;
}

double backend_number(const backend_body *body, int name) {
    const backend_attribute *attribute = backend_find(body, name);
    if (!attribute || attribute->count < 1) return 0;
    if (attribute->type == TYPE_DOUBLE) return *(const double *)attribute->values;
    return attribute->type == TYPE_FLOAT ? *(const float *)attribute->values : 0;
}

/* ---- the interface ---- */

MAYA_API dnn_status cudnnBackendCreateDescriptor(int kind, void **place) {
    if (!place) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no place for the descriptor", __func__);
    *place = NULL;
    if (!backend_find_kind(kind)) {
        maya_unsupported_detail(__func__, "descriptor type %d of cuDNN %d", kind, MAYA_CUDNN_VERSION);
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "%s: descriptor type %d", __func__, kind);
    }
    backend_descriptor *descriptor = malloc(sizeof *descriptor);
    backend_body *body = descriptor ? backend_body_create(kind) : NULL;
    if (!body) {
        free(descriptor);
        return dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "%s: no memory", __func__);
    }
    descriptor->body = body;
    *place = descriptor;
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnBackendDestroyDescriptor(backend_descriptor *descriptor) {
    if (descriptor) {
        backend_body_release(descriptor->body);
        free(descriptor);
    }
    return CUDNN_STATUS_SUCCESS;
}

static bool rule_accepts(const backend_rule *rule, int type) {
    if (rule->type == type) return true;
    if (rule->flags & OR_INT64) return type == TYPE_INT64;
    return rule->flags & NUMBER && (type == TYPE_FLOAT || type == TYPE_DOUBLE);
}

static dnn_status set_descriptors(backend_body *body, int name, int64_t count, backend_descriptor *const *descriptors) {
    backend_body *few[64];
    backend_body **bodies = count <= 64 ? few : malloc((size_t)count * sizeof *bodies);
    if (!bodies) return dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "no memory for attribute %d", name);
    dnn_status status = CUDNN_STATUS_SUCCESS;
    for (int64_t index = 0; index < count && status == CUDNN_STATUS_SUCCESS; index++) {
        if (!descriptors[index])
            status =
                dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d: descriptor %lld is NULL", name, (long long)index);
        else if (!descriptors[index]->body->finalized)
            status = dnn_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d: descriptor %lld is not finalized", name,
                              (long long)index);
        else bodies[index] = descriptors[index]->body;
    }
    if (status == CUDNN_STATUS_SUCCESS) status = backend_set(body, name, TYPE_DESCRIPTOR, count, bodies);
    if (bodies != few) free(bodies);
    return status;
}

MAYA_API dnn_status cudnnBackendSetAttribute(backend_descriptor *descriptor, int name, int type, int64_t count,
                                             const void *values) {
    if (!descriptor || count < 0 || (count > 0 && !values))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor, or no values for attribute %d", __func__,
                        name);
    backend_body *body = descriptor->body;
    if (body->finalized) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: the descriptor is finalized already", __func__);
    const backend_rule *rule = backend_find_rule(body->kind, name);
    if (!rule) {
        maya_unsupported_detail(__func__, "attribute %d of descriptor type %d", name, body->kind);
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "%s: attribute %d of descriptor type %d", __func__, name, body->kind);
    }
    if (!rule_accepts(rule, type))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "%s: attribute %d has type %d, got %d", __func__, name,
                        rule->type, type);
    if (type == TYPE_DESCRIPTOR) return set_descriptors(body, name, count, values);
    return backend_set(body, name, type, count, values);
}

/* From here on the body is read-only and may be shared. */
MAYA_API dnn_status cudnnBackendFinalize(backend_descriptor *descriptor) {
    if (!descriptor) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor", __func__);
    backend_body *body = descriptor->body;
    if (body->finalized) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: the descriptor is finalized already", __func__);
    dnn_status status = backend_check(body);
    if (status == CUDNN_STATUS_SUCCESS && body->kind == KIND_EXECUTION_PLAN) status = backend_prepare_plan(body);
    body->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

static dnn_status fill_descriptors(const backend_attribute *attribute, int64_t count, void **descriptors) {
    for (int64_t index = 0; index < count; index++) {
        backend_body *const *bodies = attribute->values;
        dnn_status status = backend_fill(descriptors[index], bodies[index]);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* The caller's descriptor becomes another handle on `body`. */
dnn_status backend_fill(void *handle, backend_body *body) {
    backend_descriptor *descriptor = handle;
    if (!descriptor)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnBackendGetAttribute: a descriptor to fill is NULL");
    if (descriptor->body->kind != body->kind)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM,
                        "cudnnBackendGetAttribute: a descriptor of type %d cannot be filled with one of type %d",
                        descriptor->body->kind, body->kind);
    body_retain(body);
    backend_body_release(descriptor->body);
    descriptor->body = body;
    return CUDNN_STATUS_SUCCESS;
}

/* *count becomes the number of values or, if `values` is not NULL, the number written, at most `requested`. */
dnn_status backend_answer(const void *source, int type, int64_t available, int64_t requested, int64_t *count, void *values) {
    int64_t written = requested < available ? requested : available;
    if (count) *count = values ? written : available;
    if (values && source && written > 0) memcpy(values, source, (size_t)written * element_size(type));
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status get_stored(const backend_body *body, int name, int type, int64_t requested, int64_t *count, void *values) {
    const backend_rule *rule = backend_find_rule(body->kind, name);
    const backend_attribute *attribute = backend_find(body, name);
    if (!rule) {
        maya_unsupported_detail("cudnnBackendGetAttribute", "attribute %d of descriptor type %d", name, body->kind);
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendGetAttribute: attribute %d of descriptor type %d", name,
                        body->kind);
    }
    if (!attribute) {
        if (!(rule->flags & LIST))
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: attribute %d is not set", name);
        return backend_answer(NULL, type, 0, requested, count, values);
    }
    if (attribute->type != type)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                        "cudnnBackendGetAttribute: attribute %d has type %d, asked for as %d", name, attribute->type, type);
    if (type != TYPE_DESCRIPTOR) return backend_answer(attribute->values, type, attribute->count, requested, count, values);
    int64_t written = requested < attribute->count ? requested : attribute->count;
    if (count) *count = values ? written : attribute->count;
    return values ? fill_descriptors(attribute, written, values) : CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnBackendGetAttribute(const backend_descriptor *descriptor, int name, int type, int64_t requested,
                                             int64_t *count, void *values) {
    if (!descriptor || requested < 0) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor", __func__);
    const backend_body *body = descriptor->body;
    if (!body->finalized)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "%s: the descriptor is not finalized", __func__);
    bool answered = false;
    dnn_status status = backend_get_computed(body, name, type, requested, count, values, &answered);
    return answered ? status : get_stored(body, name, type, requested, count, values);
}

static bool pack_has(const backend_body *pack, int64_t id) {
    int64_t count;
    const int64_t *ids = backend_int64s(pack, ATTRIBUTE_PACK_IDS, &count);
    for (int64_t index = 0; index < count; index++)
        if (ids[index] == id) return true;
    return false;
}

MAYA_API dnn_status cudnnBackendExecute(dnn_handle *handle, const backend_descriptor *plan, const backend_descriptor *pack) {
    if (!handle || !plan || !pack)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle, plan or variant pack is missing", __func__);
    if (plan->body->kind != KIND_EXECUTION_PLAN || pack->body->kind != KIND_VARIANT_PACK)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: an execution plan and a variant pack are expected", __func__);
    if (!plan->body->finalized || !pack->body->finalized)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "%s: the plan or the variant pack is not finalized", __func__);
    const backend_plan *prepared = &plan->body->plan;
    for (size_t index = 0; index < prepared->tensor_ids.count; index++)
        if (!pack_has(pack->body, prepared->tensor_ids.items[index]))
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: the variant pack has no pointer for tensor %lld", __func__,
                            (long long)prepared->tensor_ids.items[index]);
    return dnn_record_number(handle, prepared->signature);
}
