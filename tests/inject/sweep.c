/* Runs a command once for every point at which a call of it can be made to fail
 * (tests/inject/shim.c), and says what went wrong after it: a signal, a status that is not
 * documented, words that are not one line of the program, an output that is neither whole nor what
 * it was, litter, a lost state, a second run that does not end in the bytes of a run without
 * faults. Of a call whose failure shows in no file now, but in what a crash would leave, status 0
 * is wrong; and so is a run that names a file before it is synced, or does not sync the folder
 * after it.
 *
 *   sweep [-k COUNT] -m MODE [-d START] [-i STDIN] [-o OUTPUT]... [-s STATE]... [-r ARGUMENT]
 *         [-x WORDS] [-n] -- COMMAND...
 *     -k  tries only the last COUNT points, where files are published, COUNT at even distances
 *         before them, and of io-fail all calls that sync a file
 *     -d  folder whose files lie in the working folder before each run
 *     -o  a file that the command makes
 *     -s  a file that may stay when it fails, and goes when it is done
 *     -r  what the command is given when it is run again after a failure
 *     -x  how the words of a library begin that ends the process itself, with status 1, when it
 *         has no memory
 *     -n  no file without a name can be opened
 * Exit status 0: nothing wrong; the last line of standard output is "POINTS TRIED WRONG". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_FILES 16
#define MAX_SHOWN 8
#define MAX_ALWAYS 64
#define GIVEN_UP 200
#define SECONDS 120 /* of one run; more is a hang */

struct blob {
    unsigned char *data; /* NULL: there is no such file */
    size_t n;
};

struct file {
    char name[256];
    struct blob b;
};

struct list {
    struct file at[MAX_FILES];
    size_t n;
};

struct sweep {
    const char *mode, *start, *input, *again, *foreign;
    const char *outputs[MAX_FILES], *states[MAX_FILES];
    size_t n_outputs, n_states;
    char **command; /* ends with NULL */
    const char *program;
    bool named;
    char folder[64], words[80], shim[4096], count[80], log[80]; /* scratch */
    struct list before, whole;        /* the folder before any run, and after one without faults */
    struct blob whole_out;            /* standard output of that one */
    unsigned long some;               /* of -k; 0: all points */
    unsigned long always[MAX_ALWAYS]; /* points that are tried all the same */
    size_t n_always;
    unsigned long points, tried, wrong;
};

static void die(const char *what)
{
    fprintf(stderr, "sweep: %s: %s\n", what, strerror(errno));
    exit(5);
}

static struct blob slurp(const char *folder, const char *name)
{
    char path[4400];
    struct blob b = {NULL, 0};
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0 && errno == ENOENT)
        return b;
    if (fd < 0 || fstat(fd, &st) < 0 || !(b.data = malloc((size_t)st.st_size + 1)))
        die(path);
    for (ssize_t got; (got = read(fd, b.data + b.n, (size_t)st.st_size + 1 - b.n)) != 0;)
        if (got < 0 || (b.n += (size_t)got) > (size_t)st.st_size)
            die(path);
    b.data[b.n] = '\0';
    close(fd);
    return b;
}

static bool same(const struct blob *a, const struct blob *b)
{
    return a->n == b->n && !a->data == !b->data &&
           (a->n == 0 || memcmp(a->data, b->data, a->n) == 0);
}

static struct list read_folder(const char *folder)
{
    struct list l = {.n = 0};
    DIR *d = opendir(folder);
    if (!d)
        die(folder);
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (l.n == MAX_FILES) {
            errno = E2BIG;
            die(folder);
        }
        snprintf(l.at[l.n].name, sizeof l.at[l.n].name, "%s", e->d_name);
        l.at[l.n].b = slurp(folder, e->d_name);
        l.n++;
    }
    closedir(d);
    return l;
}

static void release(struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->at[i].b.data);
    l->n = 0;
}

static struct blob find(const struct list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->at[i].name, name) == 0)
            return l->at[i].b;
    return (struct blob){NULL, 0};
}

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static void put(const char *folder, const struct file *f)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, f->name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, f->b.data, f->b.n) != (ssize_t)f->b.n || close(fd) < 0)
        die(path);
}

/* The folder as it was before any run. */
static void restore(const struct sweep *s)
{
    struct list now = read_folder(s->folder);
    for (size_t i = 0; i < now.n; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", s->folder, now.at[i].name);
        if (unlink(path) < 0)
            die(path);
    }
    for (size_t i = 0; i < s->before.n; i++)
        put(s->folder, &s->before.at[i]);
    release(&now);
}

static void become(const struct sweep *s, const char *fault, bool again)
{
    char *argv[128], out[100];
    size_t n = 0;
    for (; s->command[n] && n < 120; n++)
        argv[n] = s->command[n];
    if (again && s->again)
        argv[n++] = (char *)s->again;
    argv[n] = NULL;
    snprintf(out, sizeof out, "%s.out", s->folder);
    int in = open(s->input ? s->input : "/dev/null", O_RDONLY);
    int o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int e = open(s->words, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (in < 0 || o < 0 || e < 0 || dup2(in, 0) < 0 || dup2(o, 1) < 0 || dup2(e, 2) < 0 ||
        chdir(s->folder) < 0)
        _exit(97);
    close(in);
    close(o);
    close(e);
    if (fault) {
        setenv("LD_PRELOAD", s->shim, 1);
        setenv("CART_INJECT", fault, 1);
        setenv("CART_INJECT_COUNT", s->count, 1);
        setenv("CART_INJECT_LOG", s->log, 1);
        if (s->named)
            setenv("CART_INJECT_NAMED", "1", 1);
    }
    alarm(SECONDS);
    execvp(argv[0], argv);
    _exit(98);
}

/* The wait status of a run in the folder, with the fault MODE:N, or NULL for none. */
static int run(const struct sweep *s, const char *fault, bool again)
{
    int status;
    (void)unlink(s->log);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0)
        become(s, fault, again);
    if (waitpid(pid, &status, 0) < 0)
        die("waitpid");
    return status;
}

static struct blob words_of(const struct sweep *s)
{
    return slurp("/", s->words + 1);
}

static struct blob out_of(const struct sweep *s)
{
    char out[100];
    snprintf(out, sizeof out, "%s.out", s->folder);
    return slurp("/", out + 1);
}

/* ---- the verdict on one run ---- */

__attribute__((format(printf, 4, 5))) static void blame(struct sweep *s, unsigned long n,
                                                        bool *wrong, const char *fmt, ...)
{
    if (!*wrong && s->wrong++ < MAX_SHOWN) {
        struct blob words = words_of(s);
        printf("%s %s:%lu: ", s->program, s->mode, n);
        va_list ap;
        va_start(ap, fmt);
        vprintf(fmt, ap);
        va_end(ap);
        printf(" [%.*s]\n", (int)(words.n > 200 ? 200 : words.n),
               words.data ? (char *)words.data : "");
        free(words.data);
    }
    *wrong = true;
}

static bool one_line_of(const char *program, const struct blob *words)
{
    size_t n = strlen(program);
    const unsigned char *end = words->n ? memchr(words->data, '\n', words->n) : NULL;
    return end && (size_t)(end - words->data) + 1 == words->n && words->n > n + 3 &&
           memcmp(words->data, program, n) == 0 && memcmp(words->data + n, ": ", 2) == 0;
}

/* Names that only a killed process may leave: it could not tidy up. */
static bool left_by_the_dead(const char *name)
{
    size_t n = strlen(name);
    return name[0] == '.' && n > 4 && strcmp(name + n - 4, ".tmp") == 0;
}

static void judge_files(struct sweep *s, unsigned long n, bool *wrong, bool done, bool killed)
{
    struct list now = read_folder(s->folder);
    bool all = true;
    for (size_t i = 0; i < s->n_outputs; i++) {
        struct blob is = find(&now, s->outputs[i]), was = find(&s->before, s->outputs[i]),
                    want = find(&s->whole, s->outputs[i]);
        all = all && same(&is, &want);
        if (!same(&is, &want) && (done || !same(&is, &was)))
            blame(s, n, wrong, "%s is %s", s->outputs[i],
                  is.data ? "neither whole nor as before" : "absent");
    }
    for (size_t i = 0; i < s->n_states; i++) {
        struct blob is = find(&now, s->states[i]), was = find(&s->before, s->states[i]);
        if (done && is.data)
            blame(s, n, wrong, "%s is left behind", s->states[i]);
        if (was.data && is.n < was.n && !all)
            blame(s, n, wrong, "%s was lost", s->states[i]);
    }
    for (size_t i = 0; i < now.n; i++) {
        const char *name = now.at[i].name;
        struct blob was = find(&s->before, name);
        bool ours =
            is_one_of(name, s->outputs, s->n_outputs) || is_one_of(name, s->states, s->n_states);
        if (!ours && (!was.data || !same(&was, &now.at[i].b)) &&
            !(killed && left_by_the_dead(name)))
            blame(s, n, wrong, "%s is %s", name, was.data ? "changed" : "litter");
    }
    release(&now);
}

static void judge_output(struct sweep *s, unsigned long n, bool *wrong, bool done)
{
    struct blob out = out_of(s);
    if (done ? !same(&out, &s->whole_out)
             : out.n > s->whole_out.n ||
                   (out.n > 0 && memcmp(out.data, s->whole_out.data, out.n) != 0))
        blame(s, n, wrong, "standard output is not %s",
              done ? "whole" : "the beginning of a whole one");
    free(out.data);
}

/* ---- the verdict on the log of calls ---- */

struct call {
    unsigned long point;
    unsigned long long file, folder; /* their numbers; 0: unknown, none */
    char name[32];
};

/* The next line of the log; false: there is none. */
static bool next_call(const char **at, struct call *c)
{
    int used = 0;
    bool yes = *at && sscanf(*at, "%lu %llu %llu %31[^\n]%n", &c->point, &c->file, &c->folder,
                             c->name, &used) == 4;
    *at = yes ? *at + used : NULL;
    return yes;
}

/* A failure must be said. Not among these calls: linkat, since a file without a name whose final
 * one is taken gets a temporary one; opening a file without a name, which some file systems lack;
 * unlink, of which a lost result shows as litter; closing what is synced already; all that read,
 * since what they lack shows in the output. */
static bool must_be_said(const char *name)
{
    static const char *const calls[] = {"write",    "fsync", "fdatasync", "ftruncate", "rename",
                                        "renameat", "link",  "fchmod",    "creation",  "close"};
    return is_one_of(name, calls, sizeof calls / sizeof *calls);
}

static void judge_failed_call(struct sweep *s, unsigned long n, bool *wrong)
{
    struct blob log = slurp("/", s->log + 1);
    const char *at = (char *)log.data;
    for (struct call c; next_call(&at, &c);)
        if (must_be_said(c.name))
            blame(s, n, wrong, "%s failed, and the status is 0", c.name);
    free(log.data);
}

static bool names(const struct call *c)
{
    return strcmp(c->name, "rename") == 0 || strcmp(c->name, "renameat") == 0 ||
           strcmp(c->name, "link") == 0 || strcmp(c->name, "linkat") == 0;
}

static bool syncs(const struct call *c)
{
    return strcmp(c->name, "fsync") == 0 || strcmp(c->name, "fdatasync") == 0;
}

/* What a crash right after a file got its name, or after the end, would leave: the file is synced
 * since it was last changed, before it gets a name and to the end, and its folder after. */
static void judge_order(struct sweep *s)
{
    struct blob log = slurp("/", s->log + 1);
    const char *at = (char *)log.data;
    bool wrong = false;
    for (struct call c, d; next_call(&at, &c);) {
        if (syncs(&c) && s->n_always < MAX_ALWAYS)
            s->always[s->n_always++] = c.point;
        if (!names(&c))
            continue;
        const char *place = (char *)log.data;
        bool synced = false, folder = false;
        while (place != at && next_call(&place, &d))
            synced = d.file == c.file ? syncs(&d) || (synced && names(&d)) : synced;
        if (!synced)
            blame(s, 0, &wrong, "%s of a file that is not synced", c.name);
        while (next_call(&place, &d)) {
            folder = folder || (d.file == c.folder && syncs(&d));
            synced = d.file == c.file ? syncs(&d) || (synced && names(&d)) : synced;
        }
        if (!synced)
            blame(s, 0, &wrong, "%s, then a change that is not synced", c.name);
        if (!folder)
            blame(s, 0, &wrong, "%s without a sync of the folder", c.name);
    }
    free(log.data);
}

static bool untouched(const struct sweep *s)
{
    struct list now = read_folder(s->folder);
    bool yes = now.n == s->before.n;
    for (size_t i = 0; i < now.n && yes; i++) {
        struct blob was = find(&s->before, now.at[i].name);
        yes = same(&was, &now.at[i].b);
    }
    release(&now);
    return yes;
}

static void try_point(struct sweep *s, unsigned long n)
{
    char fault[64];
    bool wrong = false, killing = strncmp(s->mode, "kill", 4) == 0;
    bool harmless = strcmp(s->mode, "io-short") == 0 || strcmp(s->mode, "io-eintr") == 0;
    restore(s);
    snprintf(fault, sizeof fault, "%s:%lu", s->mode, n);
    int status = run(s, fault, false);
    bool done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bool killed = killing && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    struct blob words = words_of(s);
    bool foreign = s->foreign && WIFEXITED(status) && WEXITSTATUS(status) == 1 && words.n > 0 &&
                   strncmp((char *)words.data, s->foreign, strlen(s->foreign)) == 0;
    if (WIFSIGNALED(status) && !killed)
        blame(s, n, &wrong, WTERMSIG(status) == SIGALRM ? "hangs" : "signal %d", WTERMSIG(status));
    else if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && !foreign &&
             (WEXITSTATUS(status) != 5 || harmless || killing))
        blame(s, n, &wrong, "status %d", WEXITSTATUS(status));
    if (done ? words.n > 0 : !killed && !foreign && !one_line_of(s->program, &words))
        blame(s, n, &wrong, done ? "words of a run that is done" : "expected one line of words");
    free(words.data);
    judge_files(s, n, &wrong, done, killed);
    judge_output(s, n, &wrong, done);
    if (done && !harmless)
        judge_failed_call(s, n, &wrong);
    if (!done && !wrong && !untouched(s)) {
        status = run(s, NULL, true);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            blame(s, n, &wrong, "run again: status %d",
                  WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        judge_files(s, n, &wrong, true, killed);
        judge_output(s, n, &wrong, true);
    }
    s->tried++;
}

/* ---- the sweep ---- */

static void run_whole(struct sweep *s)
{
    restore(s);
    int status = run(s, NULL, false);
    struct blob words = words_of(s);
    if (status != 0 || words.n > 0) {
        printf("%s: without a fault: wait status %d [%.*s]\n", s->program, status, (int)words.n,
               words.data);
        exit(1);
    }
    free(words.data);
    s->whole = read_folder(s->folder);
    s->whole_out = out_of(s);
    for (size_t i = 0; i < s->n_outputs; i++)
        if (!find(&s->whole, s->outputs[i]).data) {
            printf("%s: without a fault: no %s\n", s->program, s->outputs[i]);
            exit(1);
        }
}

static bool is_always(const struct sweep *s, unsigned long n)
{
    for (size_t i = 0; i < s->n_always; i++)
        if (s->always[i] == n)
            return true;
    return false;
}

static unsigned long count_points(struct sweep *s)
{
    char fault[64];
    bool wrong = false;
    restore(s);
    snprintf(fault, sizeof fault, "%s:0", s->mode);
    int status = run(s, fault, false);
    if (status != 0)
        blame(s, 0, &wrong, "counting: wait status %d", status);
    judge_files(s, 0, &wrong, true, false);
    judge_order(s);
    struct blob b = slurp("/", s->count + 1);
    unsigned long n = b.data ? strtoul((char *)b.data, NULL, 10) : 0;
    if (n == 0 && !wrong)
        blame(s, 0, &wrong, "counting: no point");
    free(b.data);
    return n;
}

static void usage(void)
{
    fprintf(stderr, "usage: sweep [-k COUNT] -m MODE [-d START] [-i STDIN] [-o "
                    "OUTPUT]... [-s STATE]... "
                    "[-r ARGUMENT] [-x WORDS] [-n] -- COMMAND...\n");
    exit(2);
}

static void options(struct sweep *s, int argc, char **argv)
{
    for (int c; (c = getopt(argc, argv, "+k:m:d:i:o:s:r:x:n")) != -1;) {
        if ((c == 'o' && s->n_outputs == MAX_FILES) || (c == 's' && s->n_states == MAX_FILES))
            usage();
        switch (c) {
        case 'k':
            s->some = strtoul(optarg, NULL, 10);
            break;
        case 'm':
            s->mode = optarg;
            break;
        case 'd':
            s->start = optarg;
            break;
        case 'i':
            s->input = optarg;
            break;
        case 'o':
            s->outputs[s->n_outputs++] = optarg;
            break;
        case 's':
            s->states[s->n_states++] = optarg;
            break;
        case 'r':
            s->again = optarg;
            break;
        case 'x':
            s->foreign = optarg;
            break;
        case 'n':
            s->named = true;
            break;
        default:
            usage();
        }
    }
    if (!s->mode || !argv[optind])
        usage();
    s->command = argv + optind;
    s->program = strrchr(argv[optind], '/') ? strrchr(argv[optind], '/') + 1 : argv[optind];
}

int main(int argc, char **argv)
{
    struct sweep s = {.mode = NULL};
    options(&s, argc, argv);
    char *here = realpath("/proc/self/exe", NULL);
    if (!here)
        die("/proc/self/exe");
    *strrchr(here, '/') = '\0';
    snprintf(s.shim, sizeof s.shim, "%s/shim.so", here);
    free(here);
    const char *tmp = getenv("TMPDIR");
    snprintf(s.folder, sizeof s.folder, "%.40s/sweep-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(s.folder))
        die(s.folder);
    snprintf(s.words, sizeof s.words, "%s.err", s.folder);
    snprintf(s.count, sizeof s.count, "%s.count", s.folder);
    snprintf(s.log, sizeof s.log, "%s.log", s.folder);
    if (s.start)
        s.before = read_folder(s.start);
    run_whole(&s);
    s.points = count_points(&s);
    unsigned long every = s.some && s.points > 2 * s.some ? (s.points - s.some) / s.some : 1;
    for (unsigned long n = 1; n <= s.points && s.wrong < GIVEN_UP; n++)
        if (n % every == 0 || n + s.some > s.points || is_always(&s, n))
            try_point(&s, n);
    printf("%lu %lu %lu\n", s.points, s.tried, s.wrong);
    s.before.n = 0;
    restore(&s);
    rmdir(s.folder);
    char out[100];
    snprintf(out, sizeof out, "%s.out", s.folder);
    unlink(out);
    unlink(s.words);
    unlink(s.count);
    unlink(s.log);
    return s.wrong > 0;
}
