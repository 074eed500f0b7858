/* vindex_open: what an open directory owns. Private to model/vindex*.c. */
#ifndef LQ_MODEL_VINDEX_OPEN_H
#define LQ_MODEL_VINDEX_OPEN_H

#include "model/vindex_impl.h"

enum { VINDEX_FILES_MAX = 16 };

struct vindex_file { /* one that holds weights */
    char name[VINDEX_FILE_BYTES];
    bool there;
    int fd; /* -1: mapped, or not there */
    uint64_t bytes;
    uint64_t from, end; /* of what is wanted; from == end: nothing */
    uint8_t *map;       /* of map_n bytes that begin at map_from */
    uint64_t map_from;
    size_t map_n;
};

struct vindex {
    void **blocks; /* of vindex_alloc() */
    size_t blocks_n, blocks_cap;
    struct vindex_file files[VINDEX_FILES_MAX];
    size_t files_n;
};

#endif
