/* weights: see weights.h. */
#include "router/weights.h"

#include <stdlib.h>
#include <string.h>

struct model {
    char *id;
    struct hash256 *layers; /* of layers_n; known: which of them */
    bool *known;
    uint32_t layers_n;
};

struct weights {
    struct model *models;
    size_t models_n;
};

struct weights *weights_new(void)
{
    return calloc(1, sizeof(struct weights));
}

static void model_release(struct model *m)
{
    free(m->id);
    free(m->layers);
    free(m->known);
}

void weights_free(struct weights *w)
{
    for (size_t i = 0; w && i < w->models_n; i++)
        model_release(&w->models[i]);
    if (w)
        free(w->models);
    free(w);
}

static struct model *find(const struct weights *w, const char *id)
{
    for (size_t i = 0; i < w->models_n; i++)
        if (strcmp(w->models[i].id, id) == 0)
            return &w->models[i];
    return NULL;
}

static struct model *add(struct weights *w, const char *id)
{
    struct model *more = realloc(w->models, (w->models_n + 1) * sizeof *more);
    char *copy = more ? strdup(id) : NULL;
    if (more)
        w->models = more;
    if (!copy)
        return NULL;
    w->models[w->models_n] = (struct model){.id = copy};
    return &w->models[w->models_n++];
}

static bool grow(struct model *m, uint32_t layers_n)
{
    struct hash256 *layers = realloc(m->layers, layers_n * sizeof *layers);
    if (layers)
        m->layers = layers;
    bool *known = layers ? realloc(m->known, layers_n * sizeof *known) : NULL;
    if (!known)
        return false;
    m->known = known;
    memset(known + m->layers_n, 0, (layers_n - m->layers_n) * sizeof *known);
    m->layers_n = layers_n;
    return true;
}

bool weights_agree(const struct weights *w, const char *model, const struct peer_stats *s, uint32_t *layer)
{
    const struct model *m = s->layer_hashes ? find(w, model) : NULL;
    for (uint32_t l = s->layer_first; m && l <= s->layer_last && l < m->layers_n; l++)
        if (m->known[l] && !hash256_equal(&m->layers[l], &s->layer_hashes[l - s->layer_first])) {
            *layer = l;
            return false;
        }
    return true;
}

bool weights_learn(struct weights *w, const char *model, const struct peer_stats *s)
{
    if (!s->layer_hashes)
        return true;
    struct model *m = find(w, model);
    if (!m && !(m = add(w, model)))
        return false;
    if (s->layer_last >= m->layers_n && !grow(m, s->layer_last + 1))
        return false;
    for (uint32_t l = s->layer_first; l <= s->layer_last; l++) {
        m->layers[l] = s->layer_hashes[l - s->layer_first];
        m->known[l] = true;
    }
    return true;
}

void weights_forget(struct weights *w, const char *model)
{
    struct model *m = find(w, model);
    if (!m)
        return;
    model_release(m);
    *m = w->models[--w->models_n];
}
