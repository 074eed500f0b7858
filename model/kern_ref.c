/* kern_ref: the kernels for the baseline of the architecture; the form that all
 * others must equal bit for bit. */
#define KERN_W 4 /* SSE2 and NEON: four floats a register */
#include "model/kern_body.h"

const struct kern_ops kern_ref = KERN_TABLE("ref");
