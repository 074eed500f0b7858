/* version: written by the Makefile from the file VERSION, nowhere else. */
#ifndef LQ_COMMON_VERSION_H
#define LQ_COMMON_VERSION_H
#ifndef LQ_VERSION
#error "build with the Makefile: it defines LQ_VERSION from the file VERSION"
#endif
#endif
