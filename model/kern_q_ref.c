/* kern_q_ref: the scalar form, which all others must equal bit for bit. */
#include <stdint.h>

static inline int32_t half_dot(const uint8_t *u, const int8_t *x)
{
    int32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += u[i] * x[i];
    return sum;
}
#define HALF_DOT half_dot
#include "model/kern_q_body.h"

const struct kern_q_ops kern_q_ref = KERN_Q_TABLE;
