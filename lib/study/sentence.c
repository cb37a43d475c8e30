#include "study/sentence.h"

bool cart_sentence_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\0';
}

bool cart_sentence_ends(const char *text, size_t n, size_t i, size_t *end)
{
    char c = text[i];
    bool wide = c == '\x82' && i >= 2 && text[i - 1] == '\x80' && text[i - 2] == '\xE3';

    if (c != '.' && c != '!' && c != '?' && !wide)
        return false;
    if (c == '.' && i > 0 && text[i - 1] >= '0' && text[i - 1] <= '9' && i + 1 < n &&
        text[i + 1] != '\n')
        return false;
    size_t k = i + 1;
    while (k < n && (text[k] == '"' || text[k] == '\'' || text[k] == ')' || text[k] == ']' ||
                     text[k] == '*'))
        k++;
    if (!wide && k < n && !cart_sentence_space(text[k]))
        return false;
    *end = k;
    return true;
}
