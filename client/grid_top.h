/* grid_top: `larql grid top`: the grid on a full screen, each second anew. ANSI escapes
 * alone. Without a terminal on stdout one frame is printed. */
#ifndef LQ_CLIENT_GRID_TOP_H
#define LQ_CLIENT_GRID_TOP_H

#include "client/grid_link.h"

/* router: what to call it. The exit code; says on stderr what fails. Ends by q, by a
 * signal (the terminal is as before then, too), or at once without a terminal. */
int grid_top(struct grid_link *l, const char *router);

#endif
