/* fuzz_grid: bytes as messages of proto/grid.proto. The first byte chooses which.
 * Property: what is taken can be packed, and what is packed is taken again as the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/grid_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const kinds[] = {
        &larql__grid__v1__server_message__descriptor, &larql__grid__v1__router_message__descriptor,
        &larql__grid__v1__status_response__descriptor, &larql__grid__v1__assign_range_request__descriptor};
    struct lq_fault fault;
    size_t n, again_n;
    if (size < 1)
        return 0;
    const ProtobufCMessageDescriptor *d = kinds[data[0] % 4];
    ProtobufCMessage *m = grid_msg_parse(d, data + 1, size - 1, &fault);
    if (!m) {
        require(fault.code != LQ_OK && fault.text[0] != '\0');
        return 0;
    }
    uint8_t *p = grid_msg_pack(m, &n);
    ProtobufCMessage *back = grid_msg_parse(d, p, n, &fault);
    require(back != NULL);
    uint8_t *again = grid_msg_pack(back, &again_n);
    require(n == again_n && memcmp(p, again, n) == 0);
    grid_msg_free(m);
    grid_msg_free(back);
    free(p);
    free(again);
    return 0;
}
