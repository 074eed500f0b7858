/* gguf: GGUF v2/v3 files, read through mmap, trusted in nothing.
 * Source: the GGUF specification (ggml-org/ggml, docs/gguf.md).
 * Every count, length, offset and enum is checked against the file before use;
 * an error names file, field and value. Nothing aborts. A split model
 * (NAME-00001-of-0000N.gguf) opens by any of its parts and reads as one.
 * Thread: read-only after gguf_open, usable by all. */
#ifndef LQ_MODEL_GGUF_H
#define LQ_MODEL_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

struct hash256;
struct held;

enum { GGUF_DIMS_MAX = 4, GGUF_SPLITS_MAX = 1024, GGUF_NAME_BYTES_MAX = 256, GGUF_HEAD_BYTES_MAX = 64 << 20 };

enum gguf_type { /* metadata value types, numbers of the file format */
                 GGUF_U8,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STRING,
                 GGUF_ARRAY,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64,
                 GGUF_TYPES_N
};

struct gguf; /* an open model; owns the maps */

struct gguf_string {
    const char *p; /* not terminated; points into the map */
    uint64_t n;
};

struct gguf_tensor {
    char name[GGUF_NAME_BYTES_MAX]; /* terminated */
    uint32_t type;                  /* ggml type number; model/quant.h knows some */
    uint32_t dims_n;
    uint64_t dims[GGUF_DIMS_MAX]; /* dims[0] is the row length; unused ones are 1 */
    const uint8_t *data;          /* NULL for a type that quant.h does not know, and in a hole */
    uint64_t bytes;
    uint64_t at;    /* offset in its file */
    uint32_t pad_n; /* zeros stored behind each row's dims[0] values: a vindex's (model/vindex.h), else 0 */
    bool hole;      /* a partial file, or the part of a vindex that is open, lacks its bytes */
};

/* Maps read-only; touches no tensor page. Of a partial file (model/held.h) the tensors
 * that are not there are marked. LQ_IO, LQ_BAD_MODEL, LQ_NOMEM. */
enum lq_err gguf_open(const char *path, struct gguf **out, struct lq_fault *fault) LQ_MUST_CHECK;
/* The same over memory of the caller, which outlives it (tests, fuzzing). */
enum lq_err gguf_open_memory(const uint8_t *p, size_t n, const char *name, struct gguf **out,
                             struct lq_fault *fault) LQ_MUST_CHECK;
void gguf_free(struct gguf *g);

const char *gguf_path(const struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g); /* all parts */
size_t gguf_parts_n(const struct gguf *g);
/* The mapped bytes of the first part, its time of change, and what of it is there (NULL: all). */
const uint8_t *gguf_map(const struct gguf *g, size_t *n);
int64_t gguf_mtime_ns(const struct gguf *g);
const struct held *gguf_held(const struct gguf *g);
uint64_t gguf_head_n(const struct gguf *g); /* bytes before the first part's data */
/* Rows of Q and K as Hugging Face orders them, also where the converter would have permuted
 * them (arch.h): true of a vindex. */
bool gguf_rows_unpermuted(const struct gguf *g);
/* What a vindex says that identity_model() gives for the file it was made from; NULL: nothing. */
const struct hash256 *gguf_model_hash(const struct gguf *g);

/* The same from the first n bytes of a file, before more are there: *bytes 0 (and LQ_OK):
 * more are needed. LQ_BAD_MODEL: no GGUF file, or a head over GGUF_HEAD_BYTES_MAX. */
enum lq_err gguf_head_bytes(const char *name, const uint8_t *p, size_t n, uint64_t *bytes,
                            struct lq_fault *fault) LQ_MUST_CHECK;

/* Metadata by key. The _get functions return LQ_OK and set *out, or LQ_BAD_MODEL
 * naming the key when it is absent or of another kind / out of range. Integer
 * getters accept every integer type that holds the value. */
bool gguf_has(const struct gguf *g, const char *key);
enum lq_err gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct lq_fault *fault) LQ_MUST_CHECK;
enum lq_err gguf_get_f32(const struct gguf *g, const char *key, float *out, struct lq_fault *fault) LQ_MUST_CHECK;
enum lq_err gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct lq_fault *fault) LQ_MUST_CHECK;
enum lq_err gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out,
                            struct lq_fault *fault) LQ_MUST_CHECK;

struct gguf_array {
    enum gguf_type type; /* of the elements; never GGUF_ARRAY */
    uint64_t n;
    const uint8_t *p;                  /* fixed-size elements: n of them, little-endian, unaligned */
    const struct gguf_string *strings; /* GGUF_STRING: n of them, owned by g */
};
enum lq_err gguf_get_array(const struct gguf *g, const char *key, struct gguf_array *out,
                           struct lq_fault *fault) LQ_MUST_CHECK;

size_t gguf_tensors_n(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name); /* NULL: none; hashed */

/* Drops the resident pages of a tensor that will not be used again, or asks for
 * those that will (madvise); whole pages inside the tensor only. */
void gguf_tensor_dontneed(const struct gguf_tensor *t);
void gguf_tensor_willneed(const struct gguf_tensor *t);

#endif
