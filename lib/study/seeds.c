#include "study/seeds.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const structuring[] = {"Ask me to list some of this.",
                                          "Ask me to put some of this in order.", NULL};
static const char *const structuring_openings[] = {
    "List the", "Make a list of the", "Put into a table the", "Name, point by point, the", NULL};

static const char *const summarisation[] = {
    "Ask me to sum up a part of this.", "Ask me to describe one of these things briefly.", NULL};
static const char *const summarisation_openings[] = {
    "Summarise what is said about the", "Give a short summary of the", "Describe briefly the",
    "Tell me in two sentences about the", NULL};

static const char *const question[] = {"Ask me about a fact.",
                                       "Ask me a short question about this.", NULL};
static const char *const question_openings[] = {
    "What is the",       "Which", "Who", "When is the", "Where is the", "How many", "How much",
    "How long does the", NULL};

static const char *const use_case[] = {"Ask me for practical advice on this.",
                                       "Ask me how to do something that is described here.", NULL};
static const char *const use_case_openings[] = {"How do I use the",        "How can I",
                                                "What should I do if the", "When should I",
                                                "What do I need for the",  NULL};

static const char *const creative[] = {"Ask me for something imaginative about this.",
                                       "Ask me for something playful about one of these things.",
                                       NULL};
static const char *const creative_openings[] = {"Write a short story about the", "Imagine that the",
                                                "Invent a slogan for the",
                                                "Explain to a child what the", NULL};

static const char *const mechanism[] = {"Ask me why or how something happens.",
                                        "Ask me for the reason of something.", NULL};
static const char *const mechanism_openings[] = {"Why does the",    "How does the",
                                                 "What causes the", "What happens when the",
                                                 "Why must the",    NULL};

static const char *const verbatim[] = {"Ask me for an exact name, number or wording.",
                                       "Ask me for something that is stated precisely here.", NULL};
static const char *const verbatim_openings[] = {
    "What exactly is the",          "What is the exact",
    "State precisely the",          "Which words describe the",
    "Quote what is said about the", NULL};

static const char *const none[] = {NULL};

static const struct cart_seed_type types[CART_SEEDS] = {
    [CART_SEED_STRUCTURING] = {"structuring", structuring, structuring_openings},
    [CART_SEED_SUMMARISATION] = {"summarisation", summarisation, summarisation_openings},
    [CART_SEED_QUESTION] = {"question", question, question_openings},
    [CART_SEED_USE_CASE] = {"use-case", use_case, use_case_openings},
    [CART_SEED_CREATIVE] = {"creative", creative, creative_openings},
    [CART_SEED_MECHANISM] = {"mechanism", mechanism, mechanism_openings},
    [CART_SEED_VERBATIM] = {"verbatim", verbatim, verbatim_openings},
    [CART_SEED_RECITE] = {"recite", none, none},
};

static const char *const recite[] = {
    "Recite the sentence that begins with \"%s\".",
    "How does the sentence that starts with \"%s\" go on? Give all of it.",
    "Complete this sentence, word for word: \"%s\"",
    "Which sentence begins with \"%s\"? Write it out in full.", NULL};

const struct cart_seed_type *cart_seed_type(enum cart_seed seed)
{
    return &types[seed];
}

const char *const *cart_seed_recite_wordings(void)
{
    return recite;
}

static int add_weight(double weights[CART_SEEDS], bool seen[CART_SEEDS], const char *item, size_t n,
                      struct cart_err *err)
{
    const char *colon = memchr(item, ':', n);
    size_t n_name = colon != NULL ? (size_t)(colon - item) : n;
    double w = 1;

    if (colon != NULL) {
        char number[32];
        char *end = NULL;
        size_t n_number = n - n_name - 1;
        bool ok = n_number > 0 && n_number < sizeof number &&
                  strspn(colon + 1, "0123456789.") >= n_number;
        if (ok) {
            memcpy(number, colon + 1, n_number);
            number[n_number] = '\0';
            errno = 0;
            w = strtod(number, &end);
            ok = *end == '\0' && errno == 0 && isfinite(w) && w <= 1e6;
        }
        if (!ok)
            return cart_err_set(err, CART_EUSAGE,
                                "seed types: %.*s: expected a weight from 0 to 1000000", (int)n,
                                item);
    }
    for (size_t i = 0; i < CART_SEEDS; i++) {
        if (strlen(types[i].name) == n_name && memcmp(types[i].name, item, n_name) == 0) {
            if (seen[i])
                return cart_err_set(err, CART_EUSAGE, "seed types: %s occurs twice", types[i].name);
            seen[i] = true;
            weights[i] = w;
            return 0;
        }
    }
    return cart_err_set(err, CART_EUSAGE,
                        "seed types: %.*s: expected structuring, summarisation, question, "
                        "use-case, creative, mechanism, "
                        "verbatim or recite",
                        (int)n_name, item);
}

int cart_seed_weights_parse(double weights[CART_SEEDS], const char *list, struct cart_err *err)
{
    bool seen[CART_SEEDS] = {false};
    double sum = 0;

    for (size_t i = 0; i < CART_SEEDS; i++)
        weights[i] = list != NULL ? 0 : i == CART_SEED_RECITE ? 7 : 1;
    while (list != NULL) {
        size_t n = strcspn(list, ",");
        int r = add_weight(weights, seen, list, n, err);
        if (r < 0)
            return r;
        list = list[n] == ',' ? list + n + 1 : NULL;
    }
    for (size_t i = 0; i < CART_SEEDS; i++)
        sum += weights[i];
    if (!(sum > 0))
        return cart_err_set(err, CART_EUSAGE, "seed types: expected a weight above 0");
    for (size_t i = 0; i < CART_SEEDS; i++)
        weights[i] /= sum;
    return 0;
}

enum cart_seed cart_seed_at(const double weights[CART_SEEDS], double u)
{
    enum cart_seed last = CART_SEED_QUESTION;
    double sum = 0;

    for (size_t i = 0; i < CART_SEEDS; i++) {
        if (weights[i] <= 0)
            continue;
        last = (enum cart_seed)i;
        sum += weights[i];
        if (u < sum)
            return last;
    }
    return last;
}
