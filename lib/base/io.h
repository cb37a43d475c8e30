/* Reading and writing descriptors and files: EINTR and short transfers are handled here and nowhere
 * else. */
#ifndef CART_BASE_IO_H
#define CART_BASE_IO_H

#include "base/buf.h"
#include "base/err.h"

/* Reads exactly n bytes. Returns 1 if all came, 0 on a clean end before the first byte; CART_ETRUNC
 * if it ends within; CART_EAGAIN if cart_interrupted() while it waited. */
int cart_io_read(int fd, void *out, size_t n, const char *name, struct cart_err *err) CART_MUST_USE;
int cart_io_write(int fd, const void *bytes, size_t n, const char *name,
                  struct cart_err *err) CART_MUST_USE;

/* The error of a read that failed, from errno: CART_EFORMAT where name is of a directory, which can
 * be opened and not read; else CART_ESYS. */
int cart_io_read_failed(const char *name, struct cart_err *err);

/* Reads a whole file or, for "-", standard input, of at most limit bytes (more is CART_EFORMAT),
 * into b. */
int cart_io_slurp(const char *path, size_t limit, struct cart_buf *b,
                  struct cart_err *err) CART_MUST_USE;

/* A regular file mapped read-only and shared. */
struct cart_map {
    const unsigned char *data; /* NULL if size is 0 */
    size_t size;
};

/* Refuses what is not a regular file: CART_EFORMAT a directory, CART_EUSAGE all else. The mapping
 * stays valid until cart_map_release. */
int cart_map_open(struct cart_map *map, const char *path, struct cart_err *err) CART_MUST_USE;
/* The same of a descriptor, which stays the caller's. */
int cart_map_fd(struct cart_map *map, int fd, const char *name, struct cart_err *err) CART_MUST_USE;
void cart_map_release(struct cart_map *map);

/* An output that appears whole or not at all: a file without a name in the directory of path where
 * the system has such (else a temporary file beside it), then fsync, a link where the name is free
 * (else a rename), fsync of the directory. A process that is killed between link and rename leaves
 * .NAME.PID-N.tmp. A symbolic link is followed, also to where nothing is; an existing file keeps
 * its permission bits. path NULL or "-" is standard output, and what cart_io_is_direct is written
 * directly like it (refused when it is a terminal, unless text): a name of a descriptor goes on
 * where that one stands, and nothing in its file is lost. A directory is CART_EUSAGE. */
struct cart_output {
    int fd;         /* write here */
    char *path;     /* final name, owned; NULL for standard output and devices */
    char *tmp_path; /* name before the rename, owned; may not exist before commit; NULL for standard
                       output */
    bool unnamed;   /* fd has no name yet */
};

int cart_output_open(struct cart_output *out, const char *path, bool text,
                     struct cart_err *err) CART_MUST_USE;
/* Publishes, and releases out, also on failure. After an error path is as it was, but where the
 * last step failed, the sync of its directory: then the new file stands, whole. */
int cart_output_commit(struct cart_output *out, struct cart_err *err) CART_MUST_USE;
/* Removes the temporary file. Safe on a released or zeroed output. */
void cart_output_abandon(struct cart_output *out);

/* What is written directly, since there is no file to rename into place: standard output (path NULL
 * or "-") and names of descriptors, links to them included, a device, a FIFO, or the empty name. */
bool cart_io_is_direct(const char *path);

/* Whether two names are of one regular file, or would be: of names under which nothing stands, the
 * folders and last parts are compared. */
bool cart_io_same_file(const char *a, const char *b);

/* Whether what is written under two names would mix: of one regular file, as above, one pipe or
 * socket, or both standard output (NULL or "-"). A device takes what comes: /dev/null,
 * terminals. */
bool cart_io_same_output(const char *a, const char *b);

/* Whether path is, or would be, in the directory dir or in one below it; false where dir is
 * none. */
bool cart_io_within(const char *path, const char *dir);

/* Whether two names are, or would be, in one folder; "DIR/." is in DIR. */
bool cart_io_beside(const char *a, const char *b);

/* Appends the name of what a long writer keeps beside the file path: that of the file, symbolic
 * links followed as cart_output does it, and ending. Two names of one file so have one. */
int cart_io_companion(struct cart_buf *b, const char *path, const char *ending,
                      struct cart_err *err) CART_MUST_USE;

/* CART_ESYS unless some more descriptors can be opened: asked before long work that ends in writing
 * files. */
int cart_io_spare(struct cart_err *err) CART_MUST_USE;

/* FILE.part of a long writer: opened for reading and writing, made where there is none, its content
 * kept, and locked until the descriptor is closed (duplicates included). CART_EUSAGE: there is
 * something else than a regular file, be it a symbolic link. CART_EAGAIN: another process has it.
 * The lock binds those who ask for it, on file systems that have locks. */
int cart_io_claim(int *fd, const char *path, struct cart_err *err) CART_MUST_USE;
/* The same of a file that is open already, before it is renamed to a claimed name: the claim goes
 * on without a gap where the descriptor before it stays open until then. */
int cart_io_claim_fd(int fd, const char *name, struct cart_err *err) CART_MUST_USE;
/* Whether the name path is that of fd, and not of another file, a link or none. */
bool cart_io_is_at(int fd, const char *path);

/* "DIR/NAME", with one slash between them. The caller's to free; NULL when out of memory. */
char *cart_io_join(const char *dir, const char *name) CART_MUST_USE;

/* A file without a name in the folder dir, to be written and read; it goes with its descriptor. */
int cart_io_scratch(int *out, const char *dir, struct cart_err *err) CART_MUST_USE;
/* The folder for what has no better one: TMPDIR, or /tmp. */
const char *cart_io_scratch_dir(void);

/* fsync and rename of the file fd, readable, that the caller wrote under from, then fsync of the
 * directory; as cart_output does it, with symbolic links followed and an existing file's permission
 * bits kept. CART_EUSAGE if there is something else than a regular file under to, which stays;
 * CART_EAGAIN if the name from is no longer that of fd. */
int cart_io_publish(int fd, const char *from, const char *to, struct cart_err *err) CART_MUST_USE;

#endif
