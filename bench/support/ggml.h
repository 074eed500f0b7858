/* ggml: llama.cpp's kernels as a judge of ours. The shared libraries of npm package
 * @node-llama-cpp/linux-x64 (or -arm64) are opened at run time from $LQ_GGML_DIR, which
 * `make bench` sets; no header of theirs is needed, and nothing outside bench/ sees this.
 *
 * As llama.cpp itself runs: the CPU variant that it rates best on this machine; weights
 * in the buffer type that its loader would choose (CPU_REPACK interleaves rows where a
 * kernel for that exists); worker threads kept between runs, spinning, as they do between
 * the nodes of a graph. Call ggml_judge_rest() before timing anything else.
 * Not thread-safe. */
#ifndef LQ_BENCH_SUPPORT_GGML_H
#define LQ_BENCH_SUPPORT_GGML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_judge;
struct ggml_job;

enum { GGML_JUDGE_THREADS_MAX = 64, GGML_JUDGE_LOG_ERROR = 4 };

/* NULL when the libraries cannot be used; *why then says it, in static memory. */
struct ggml_judge *ggml_judge_open(const char **why);
void ggml_judge_close(struct ggml_judge *j); /* after its jobs; NULL is fine */

/* "libggml-cpu-zen4.so": what it chose for this CPU. */
const char *ggml_judge_variant(const struct ggml_judge *j);

/* Lets the worker threads sleep; the next run wakes them. */
void ggml_judge_rest(struct ggml_judge *j);

/* ggml's thread pool of that many threads, made once, the judge's; NULL: out of memory or
 * of range. */
void *ggml_judge_pool(struct ggml_judge *j, int threads_n);

/* rows_n x cols_n values -> blocks of a type (quant_info[].ggml_type) by ggml's own
 * quantiser; returns the bytes written. */
size_t ggml_judge_quantize(struct ggml_judge *j, uint32_t ggml_type, const float *x, size_t rows_n, size_t cols_n,
                           void *out);

/* A prepared product: out[s][r] = sum over c of weights[r][c] * in[s][c], seq_n rows s.
 * weights: as in a GGUF file, 32-byte aligned; repacked into a copy where ggml does so,
 * else used in place, so they must outlive the job. NULL: *why says it. */
struct ggml_job *ggml_job_new(struct ggml_judge *j, uint32_t ggml_type, size_t cols_n, size_t rows_n,
                              const void *weights, size_t seq_n, int threads_n, const char **why);
void ggml_job_free(struct ggml_job *job); /* NULL is fine */

float *ggml_job_in(struct ggml_job *job);                /* seq_n x cols_n, to be written by the caller */
const float *ggml_job_out(struct ggml_job *job);         /* seq_n x rows_n, after a run */
const char *ggml_job_layout(const struct ggml_job *job); /* "CPU", "CPU_REPACK", ... */

/* The timed part. False: ggml failed. */
bool ggml_job_run(struct ggml_job *job);

#endif
