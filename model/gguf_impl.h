/* gguf_impl: the open model, shared by gguf.c (files, look-ups) and gguf_parse.c
 * (bytes of one part). Private to model/. */
#ifndef LQ_MODEL_GGUF_IMPL_H
#define LQ_MODEL_GGUF_IMPL_H

#include "common/name_index.h"
#include "model/gguf.h"
#include "model/held.h"
#include "proto/bytes.h"

enum {
    GGUF_MAGIC = 0x46554747, /* "GGUF" */
    GGUF_ALIGN_DEFAULT = 32,
    GGUF_ALIGN_MAX = 1 << 20,
    GGUF_KVS_MAX = 1 << 16,     /* real files have tens */
    GGUF_TENSORS_MAX = 1 << 18, /* real files have thousands */
};
extern const uint8_t gguf_scalar_bytes[GGUF_TYPES_N]; /* of a value; 0: no fixed size */

struct gguf_kv {
    struct gguf_string key;
    enum gguf_type type;
    enum gguf_type elem;         /* of an array */
    uint64_t n;                  /* of an array; else 1 */
    const uint8_t *p;            /* the value's bytes; strings: NULL */
    struct gguf_string *strings; /* GGUF_STRING, alone or in an array: n; owned */
};

struct gguf_part {    /* one file */
    const char *name; /* for messages; owned by g->names or the caller */
    const uint8_t *p;
    size_t n;
    bool mapped;      /* of a file; p is NULL where `vindex` owns the map */
    int64_t mtime_ns; /* of the file as it was when mapped; 0: memory of the caller */
};

struct gguf {
    struct gguf_part *parts;
    size_t parts_n;
    char **names;        /* of the parts */
    struct gguf_kv *kvs; /* of the first part */
    size_t kvs_n;
    struct gguf_tensor *tensors; /* of all parts */
    size_t tensors_n;
    struct name_index kv_index, tensor_index;
    uint64_t head_n; /* bytes before the first part's data */
    bool partial;    /* `held` says what the one part holds */
    struct held held;
    struct vindex *vindex; /* owns what a directory's keys and tensors point at; NULL: a GGUF file */
    bool has_model_hash;
    struct hash256 model_hash;
};

/* Room for parts_n parts, each to be filled in; NULL: out of memory. */
struct gguf *gguf_new(size_t parts_n);
/* The look-ups by name, once keys and tensors are there; LQ_BAD_MODEL names one that is there twice. */
enum lq_err gguf_index(struct gguf *g, struct lq_fault *fault) LQ_MUST_CHECK;

/* Reads part i into g: metadata (kept for the first part only) and tensors. split_no
 * is what its split.no says, or 0. */
enum lq_err gguf_parse_part(struct gguf *g, size_t i, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
