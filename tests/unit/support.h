/* support: what unit tests share. Tests run from the project's root. */
#ifndef LQ_TESTS_UNIT_SUPPORT_H
#define LQ_TESTS_UNIT_SUPPORT_H

#include <check.h>
#include <stddef.h>
#include <stdint.h>

/* Runs and frees the suite; the value for main to return. */
int run_suite(Suite *s);

/* A whole file, malloc'd and terminated; fails the test when it is not there. */
char *read_text(const char *path, size_t *n);

/* "0aff" -> bytes; returns how many. */
size_t unhex(const char *hex, uint8_t *out);

#endif
