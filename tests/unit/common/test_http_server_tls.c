/* All of test_http_server.c over TLS. */
#include "tests/unit/common/tls_kit.h"

#include "tests/unit/common/test_http_server.c"
