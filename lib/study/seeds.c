#include "study/seeds.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const structuring[] = {
    "Write one request that somebody could send to an expert on the text above: the expert shall lay out a part of it as a "
    "list, a table or an outline. Name the part. Write the request only.",
    "Ask, in one sentence, for some of the facts above to be put in order: as steps, a list or a table. Say which facts. "
    "Write the request only.",
    NULL};
static const char *const structuring_openings[] = {"List", "Make a list of", "Put together a table of", "Outline",
                                                   "Name, point by point,", NULL};

static const char *const summarisation[] = {
    "Write one request for a short summary of a part of the text above. Name the part by its subject. Write the request "
    "only.",
    "Ask, in one sentence, to be told briefly what the text above says on one of its subjects. Name the subject. Write the "
    "request only.",
    NULL};
static const char *const summarisation_openings[] = {"Summarise", "Give a short summary of", "In two or three sentences, describe",
                                                     "Tell me briefly about", NULL};

static const char *const question[] = {
    "Ask one question about a fact in the text above. Name the things it is about, so that somebody who does not see the "
    "text understands it. Write the question only.",
    "Write one short question that the text above answers, about a name, a number, a date, a place or a rule. Write the "
    "question only.",
    NULL};
static const char *const question_openings[] = {"What", "Which", "Who", "When", "Where", "How many", "How much", "How long", NULL};

static const char *const use_case[] = {
    "Imagine a person with a practical task for which the text above is useful. Write the question that this person asks. "
    "Name the task. Write the question only.",
    "Write one question from somebody who wants to do something described above and needs advice on it. Write the question "
    "only.",
    NULL};
static const char *const use_case_openings[] = {"How do I", "How can I", "What should I do if", "When should I", "I want to", NULL};

static const char *const creative[] = {
    "Ask for something imaginative that is made out of the facts above: a slogan, a short story, a letter, a comparison. "
    "Name the facts to be used. Write the request only.",
    "Write one playful request that can only be met by somebody who knows the text above well. Write the request only.",
    NULL};
static const char *const creative_openings[] = {"Write a short", "Imagine", "Invent", "Explain to a child", NULL};

static const char *const mechanism[] = {
    "Ask one question about a cause, a reason or the way something works in the text above. Name what it is about. Write "
    "the question only.",
    "Write one question whose answer explains why or how something in the text above happens. Write the question only.",
    NULL};
static const char *const mechanism_openings[] = {"Why", "How does", "How is", "What causes", "What happens when", "Explain how", NULL};

static const char *const verbatim[] = {
    "Ask for an exact wording, number, name or setting that stands in the text above. Say precisely which one. Write the "
    "question only.",
    "Write one question that must be answered with the very words or figures of the text above. Write the question only.",
    NULL};
static const char *const verbatim_openings[] = {"What exactly", "What is the exact", "Quote", "State precisely", "Which words", NULL};

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
    "Which sentence begins with \"%s\"? Write it out in full.",
    NULL};

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
        bool ok = n_number > 0 && n_number < sizeof number && strspn(colon + 1, "0123456789.") >= n_number;
        if (ok) {
            memcpy(number, colon + 1, n_number);
            number[n_number] = '\0';
            errno = 0;
            w = strtod(number, &end);
            ok = *end == '\0' && errno == 0 && isfinite(w) && w <= 1e6;
        }
        if (!ok)
            return cart_err_set(err, CART_EUSAGE, "seed types: %.*s: expected a weight from 0 to 1000000", (int)n, item);
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
                        "seed types: %.*s: expected structuring, summarisation, question, use-case, creative, mechanism, "
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
