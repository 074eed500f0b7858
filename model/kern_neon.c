/* kern_neon: NEON is AArch64's baseline, so kern_ref is compiled with it already; this
 * names it and is the place for forms that intrinsics make faster. */
#include "model/kern.h"

void kern_init_neon(struct kern_ops *k)
{
#if defined(__aarch64__)
    k->name = "neon";
#else
    (void)k;
#endif
}
