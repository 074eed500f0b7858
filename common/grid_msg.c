/* grid_msg: see grid_msg.h. The checks walk protobuf-c's descriptors, so that a message
 * added to the .proto is checked, too. */
#include "common/grid_msg.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks ------------------------------------------------------------------------------ */

/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool is_utf8(const uint8_t *p)
{
    while (*p) {
        size_t n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
        if (n == 0)
            return false;
        for (size_t i = 1; i < n; i++)
            if ((p[i] & 0xc0) != 0x80)
                return false;
        if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
            (p[0] == 0xf4 && p[1] > 0x8f))
            return false;
        p += n;
    }
    return true;
}

static enum lq_err check(const ProtobufCMessage *m, struct lq_fault *fault);

static enum lq_err check_one(const ProtobufCFieldDescriptor *f, const void *value, struct lq_fault *fault)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)value;
        if (strlen(text) > GRID_TEXT_BYTES_MAX || !is_utf8((const uint8_t *)text))
            return lq_fail(fault, LQ_BAD_BODY, "%s is no UTF-8 text of at most %d bytes", f->name,
                           GRID_TEXT_BYTES_MAX);
        return LQ_OK;
    }
    case PROTOBUF_C_TYPE_FLOAT:
        return isfinite(*(const float *)value) ? LQ_OK : lq_fail(fault, LQ_BAD_BODY, "%s is not finite", f->name);
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *m = *(ProtobufCMessage *const *)value;
        return m ? check(m, fault) : LQ_OK;
    }
    default:
        return LQ_OK;
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *f)
{
    return f->type == PROTOBUF_C_TYPE_STRING || f->type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *)
           : f->type == PROTOBUF_C_TYPE_UINT64                                     ? sizeof(uint64_t)
                                                                                   : sizeof(uint32_t);
}

static enum lq_err check_field(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, struct lq_fault *fault)
{
    const char *at = (const char *)m + f->offset;
    enum lq_err rc = LQ_OK;
    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) { /* the members share their place: look at the one that is set */
        bool is_set = *(const uint32_t *)(const void *)((const char *)m + f->quantifier_offset) == f->id;
        return is_set ? check_one(f, at, fault) : LQ_OK;
    }
    if (f->label != PROTOBUF_C_LABEL_REPEATED)
        return check_one(f, at, fault);
    size_t n = *(const size_t *)(const void *)((const char *)m + f->quantifier_offset);
    const char *list = *(char *const *)(const void *)at;
    for (size_t i = 0; i < n && !rc; i++)
        rc = check_one(f, list + i * size_of(f), fault);
    return rc;
}

static const uint32_t *u32_of(const ProtobufCMessage *m, const char *name)
{
    const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
    return f ? (const uint32_t *)(const void *)((const char *)m + f->offset) : NULL;
}

static bool runs_backwards(const ProtobufCMessage *m, const char *start, const char *end)
{
    const uint32_t *a = u32_of(m, start), *b = u32_of(m, end);
    return a && b && *a > *b;
}

static enum lq_err check(const ProtobufCMessage *m, struct lq_fault *fault)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    enum lq_err rc = LQ_OK;
    for (unsigned i = 0; i < m->n_unknown_fields; i++)
        if (m->unknown_fields[i].tag == 0)
            return lq_fail(fault, LQ_BAD_BODY, "%s has a field of number 0", d->short_name);
    if (runs_backwards(m, "layer_start", "layer_end"))
        return lq_fail(fault, LQ_BAD_BODY, "%s: layer_end is below layer_start", d->short_name);
    if (runs_backwards(m, "expert_start", "expert_end"))
        return lq_fail(fault, LQ_BAD_BODY, "%s: expert_end is below expert_start", d->short_name);
    bool has_kinds = d->n_fields > 0 && (d->fields[0].flags & PROTOBUF_C_FIELD_FLAG_ONEOF);
    if (has_kinds && *(const uint32_t *)(const void *)((const char *)m + d->fields[0].quantifier_offset) == 0)
        return lq_fail(fault, LQ_BAD_BODY, "a %s of a kind that is unknown here", d->short_name);
    for (unsigned i = 0; i < d->n_fields && !rc; i++)
        rc = check_field(m, &d->fields[i], fault);
    return rc;
}

/* ---- bytes -> message ---------------------------------------------------------------------- */

void *grid_msg_parse(const ProtobufCMessageDescriptor *d, const uint8_t *p, size_t n, struct lq_fault *fault)
{
    bool is_status = d == &larql__grid__v1__status_response__descriptor;
    size_t limit = is_status ? GRID_STATUS_BYTES_MAX : GRID_ASK_BYTES_MAX;
    if (n > limit) {
        (void)lq_fail(fault, LQ_BIG_BODY, "%s of %zu bytes is over the limit of %zu", d->short_name, n, limit);
        return NULL;
    }
    ProtobufCMessage *m = protobuf_c_message_unpack(d, NULL, n, p);
    if (!m) {
        (void)lq_fail(fault, LQ_BAD_BODY, "%zu bytes that are no %s", n, d->short_name);
        return NULL;
    }
    if (check(m, fault) == LQ_OK)
        return m;
    protobuf_c_message_free_unpacked(m, NULL);
    return NULL;
}

void grid_msg_free(void *m)
{
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
}

/* ---- message -> bytes ---------------------------------------------------------------------- */

uint8_t *grid_msg_pack(const ProtobufCMessage *m, size_t *n)
{
    size_t size = protobuf_c_message_get_packed_size(m);
    uint8_t *p = malloc(size ? size : 1);
    if (p)
        *n = protobuf_c_message_pack(m, p);
    return p;
}

bool grid_msg_send(struct grpc_stream *s, const ProtobufCMessage *m)
{
    size_t n = 0;
    uint8_t *p = grid_msg_pack(m, &n);
    bool room = grpc_stream_send(s, p, n);
    free(p);
    return room;
}

void grid_msg_reply(struct grpc_stream *s, const ProtobufCMessage *m)
{
    size_t n = 0;
    uint8_t *p = grid_msg_pack(m, &n);
    if (p)
        grpc_stream_reply(s, p, n);
    else
        grpc_stream_finish(s, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    free(p);
}
