/* Replays saved inputs through one fuzz target, TAP on standard output: fuzz_NAME [FILE|DIR...],
 * without arguments the files of tests/fuzz/corpus/NAME and, where it is there, of the shared data
 * set NAME-crafted. */
#include "base/io.h"
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_MAX ((size_t)64 << 20)

static size_t replayed, files;
static char current[4096]; /* the input at work */

/* Of the sanitizers' run time, where there is one. */
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void name_input(void)
{
    fprintf(stderr, "# the input was %s\n", current);
}

static void replay_file(const char *path)
{
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;
    if (cart_io_slurp(path, INPUT_MAX, &b, &err) < 0) {
        printf("not ok %zu - %s\n", ++replayed, err.msg);
        exit(1);
    }
    snprintf(current, sizeof current, "%s", path);
    LLVMFuzzerTestOneInput((const uint8_t *)(b.data ? b.data : ""), b.len);
    cart_buf_release(&b);
    files++;
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static void replay(const char *path)
{
    struct stat st;
    struct dirent **list = NULL;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        replay_file(path);
        return;
    }
    int n = scandir(path, &list, visible, alphasort);
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, list[i]->d_name);
        replay_file(file);
        free(list[i]);
    }
    free(list);
}

static void replay_set(const char *path)
{
    size_t before = files;
    replay(path);
    printf("ok %zu - %s: %zu inputs\n", ++replayed, path, files - before);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/'), *root = getenv("CART_TEST_ROOT"),
               *shared = getenv("CART_SHARED");
    char path[4096];
    struct stat st;

    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(name_input);
    name = name ? name + 1 : argv[0];
    name += strncmp(name, "fuzz_", 5) == 0 ? 5 : 0;
    for (int i = 1; i < argc; i++)
        replay_set(argv[i]);
    if (argc == 1) {
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", root ? root : ".", name);
        replay_set(path);
        if (files == 0)
            printf("not ok %zu - %s: expected a corpus\n", ++replayed, path);
        snprintf(path, sizeof path, "%s/data/%s-crafted", shared ? shared : "../shared", name);
        if (stat(path, &st) == 0)
            replay_set(path);
    }
    printf("1..%zu\n", replayed);
    return files == 0;
}
