/* Writes the file named "out" as the tools do, but for one fault, to see that sweep says so. The
 * rename or the whole output hides all of these until the computer stops.
 *   careless none|no-sync|sync-unheard|late-write|no-folder-sync|folder-unheard|close-unheard|
 *            cut-unheard */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *fault = "";

static bool is(const char *name)
{
    return strcmp(fault, name) == 0;
}

static int give_up(int fd)
{
    if (fd >= 0)
        close(fd);
    unlink(".out.tmp");
    fprintf(stderr, "careless: no output\n");
    return 5;
}

int main(int argc, char **argv)
{
    fault = argc > 1 ? argv[1] : "";
    int fd = open(".out.tmp", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, "whole\n", 6) != 6)
        return give_up(fd);
    if (ftruncate(fd, 6) < 0 && !is("cut-unheard"))
        return give_up(fd);
    /* The one descriptor is closed before the other syncs. */
    int first = is("close-unheard") ? fd : -1;
    if (first >= 0 && (fd = dup(first)) >= 0)
        (void)close(first);
    if (!is("no-sync") && fsync(fd) < 0 && !is("sync-unheard"))
        return give_up(fd);
    if (is("late-write") && write(fd, "\n", 1) != 1)
        return give_up(fd);
    if (close(fd) < 0)
        return give_up(-1);
    if (rename(".out.tmp", "out") < 0)
        return give_up(-1);
    fd = open(".", O_RDONLY | O_DIRECTORY);
    if (fd < 0 || (!is("no-folder-sync") && fsync(fd) < 0 && !is("folder-unheard")))
        return give_up(fd);
    close(fd);
    return 0;
}
