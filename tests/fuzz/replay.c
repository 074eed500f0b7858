/* replay: a main for a fuzz target without libFuzzer: each file, and each file of each
 * folder given, once. So the corpus is a test that gcc builds too. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int files_n;

static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        return 1;
    }
    size_t n = (size_t)st.st_size;
    uint8_t *p = malloc(n + 1); /* exact size but one: sanitizers see a read past the end */
    if (p && fread(p, 1, n, f) == n) {
        uint8_t *exact = realloc(p, n ? n : 1);
        (void)LLVMFuzzerTestOneInput(exact, n);
        free(exact);
        files_n++;
    } else {
        free(p);
    }
    fclose(f);
    return 0;
}

static int replay_folder(const char *path)
{
    DIR *d = opendir(path);
    int bad = 0;
    if (!d)
        return replay(path);
    for (struct dirent *e; (e = readdir(d));) {
        char file[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        bad |= replay(file);
    }
    closedir(d);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0;
    for (int i = 1; i < argc; i++)
        bad |= replay_folder(argv[i]);
    printf("%s: %d inputs replayed\n", argv[0], files_n);
    return bad || files_n == 0;
}
