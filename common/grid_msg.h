/* grid_msg: bytes <-> the messages of proto/grid.proto, with what protobuf leaves
 * unchecked: a kind that is set, text that is UTF-8 and of a sane length, ranges that
 * do not run backwards, floats that are finite. The structs are protobuf-c's.
 * Dialects of the protocol that give a field number another type are errors, too. */
#ifndef LQ_COMMON_GRID_MSG_H
#define LQ_COMMON_GRID_MSG_H

#include <stdint.h>

#include "common/grpc.h"
#include "proto/grid.pb-c.h"

enum {
    GRID_ASK_BYTES_MAX = 256 * 1024,      /* of all messages but StatusResponse: what a router's server takes */
    GRID_STATUS_BYTES_MAX = 16 * 1048576, /* of StatusResponse: 10,000 shards */
    GRID_TEXT_BYTES_MAX = 2048,           /* of one string */
};

#define GRID_JOIN_PATH "/larql.grid.v1.GridService/Join"
#define GRID_STATUS_PATH "/larql.grid.v1.GridService/Status"
#define GRID_DRAIN_PATH "/larql.grid.v1.GridService/DrainServer"
#define GRID_ASSIGN_PATH "/larql.grid.v1.GridService/AssignRange"

/* A message of that descriptor, to be freed with grid_msg_free(); NULL: fault says what
 * is wrong (LQ_BAD_BODY, LQ_BIG_BODY, LQ_NOMEM). As in
 *   Larql__Grid__V1__ServerMessage *m = grid_msg_parse(&larql__grid__v1__server_message__descriptor, p, n, &fault);
 * Unknown fields are skipped, as protobuf says; a ServerMessage or RouterMessage of an
 * unknown kind is an error. */
void *grid_msg_parse(const ProtobufCMessageDescriptor *d, const uint8_t *p, size_t n, struct lq_fault *fault);
void grid_msg_free(void *m); /* NULL is fine; only what grid_msg_parse() made */

/* malloc'd bytes; NULL: out of memory. m is any message, as &msg.base. */
uint8_t *grid_msg_pack(const ProtobufCMessage *m, size_t *n) LQ_MUST_CHECK;
/* grpc_stream_send() and grpc_stream_reply() of m. Out of memory ends the stream:
 * _send with its on_closed later, _reply with RESOURCE_EXHAUSTED to the peer. */
bool grid_msg_send(struct grpc_stream *s, const ProtobufCMessage *m);
void grid_msg_reply(struct grpc_stream *s, const ProtobufCMessage *m);

#endif
