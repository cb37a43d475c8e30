#include "base/spelling.h"

#include <stdint.h>
#include <string.h>

static size_t least_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t cart_spelling_distance(const char *name, size_t n, const char *known, size_t most)
{
    size_t m = strlen(known), rows[3][CART_SPELLING_MAX + 1];
    if (n > CART_SPELLING_MAX || m > CART_SPELLING_MAX || (n > m ? n - m : m - n) > most)
        return SIZE_MAX;
    size_t least = 0; /* of the last two rows, from which all that follows grows */
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        size_t least_above = least;
        row[0] = least = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = above[j - 1] + (name[i - 1] != known[j - 1]);
            best = least_of(best, least_of(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && name[i - 1] == known[j - 2] && name[i - 2] == known[j - 1])
                best = least_of(best, before[j - 2] + 1);
            row[j] = best;
            least = least_of(least, best);
        }
        if (least_of(least, least_above) > most)
            return SIZE_MAX;
    }
    return rows[n % 3][m] <= most ? rows[n % 3][m] : SIZE_MAX;
}
