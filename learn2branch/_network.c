/* A whole folded dual-attention network on one graph, in tiles of rows that stay in the cache.
 *
 * Included by _kernels.c after _kernels_body.c, in single precision. learn2branch/scripted.py holds
 * the same network in plain torch operators and defines the result.
 */

/* C (rows, columns) = A (rows, depth) times a packed matrix. */
static __attribute__((noinline)) void NAME(times)(const long rows, const long depth,
                                                  const long columns, const float *A,
                                                  const float *packed, float *C)
{
    NAME(product)(rows, depth, columns / 16, A, depth, 1, packed, 16, depth * 16, C, columns, 16, 0);
}

static void NAME(relu)(const long rows, const long d, const float *bias, float *x)
{
    for (long r = 0; r < rows; r++)
        for (long k = 0; k < d; k += LANES) {
            const VEC z = LOAD(x + r * d + k) + (bias ? LOAD(bias + k) : ALL(0));
            STORE(x + r * d + k) = NAME(select)(z <= 0, ALL(0), z);
        }
}

/* out = gain * normalised(x + residual) + shift, each row by itself; rows of out lie out_row apart. */
static void NAME(normalise)(const long rows, const long d, float *x, const float *residual,
                            const float *gain, const float *shift, float *out, const long out_row)
{
    for (long r = 0; r < rows; r++) {
        float *row = x + r * d;
        VEC sum = {0}, square = {0};
        for (long k = 0; k < d; k += LANES) {
            const VEC z = LOAD(row + k) + (residual ? LOAD(residual + r * d + k) : ALL(0));
            STORE(row + k) = z;
            sum += z;
        }
        const float mean = NAME(total)(sum) / d;
        for (long k = 0; k < d; k += LANES) {
            const VEC z = LOAD(row + k) - mean;
            square = FMA(z, z, square);
        }
        const float scale = 1 / sqrtf(NAME(total)(square) / d + 1e-5f);
        for (long k = 0; k < d; k += LANES) {
            const VEC z = (LOAD(row + k) - mean) * scale;
            STORE(out + r * out_row + k) = FMA(z, LOAD(gain + k), LOAD(shift + k));
        }
    }
}

struct NAME(buffers) {
    float *gathered, *query, *mean, *added, *joined, *fused, *wide;  /* of one tile */
    float *sums, *values, *key_sums, *weight, *total;                /* of one side */
};

/* (sigma(K)^T x) W_V W_O for all heads, packed, and the sums of sigma(K). */
static void NAME(summarise)(const struct network *net, const struct side *w, const long n,
                            const float *x, const struct NAME(buffers) b)
{
    const long d = net->width, heads = net->heads, all = heads * d;
    const long stride = all + 16; /* not a power of two: columns must not share a cache set */
    memset(b.sums, 0, all * d * sizeof(float));
    memset(b.key_sums, 0, all * sizeof(float));
    for (long first = 0; first < n; first += TILE) {
        const long rows = n - first < TILE ? n - first : TILE;
        const float *tile = x + first * d;
        NAME(product)(rows, d, all / 16, tile, d, 1, w->self_key, 16, d * 16, b.query, stride, 16, 0);
        NAME(sigmoid)(rows, all, b.query, stride);
        for (long k = 0; k < all; k += LANES) {
            VEC sum = LOAD(b.key_sums + k);
            for (long r = 0; r < rows; r++)
                sum += LOAD(b.query + r * stride + k);
            STORE(b.key_sums + k) = sum;
        }
        NAME(product)(all, rows, d / 16, b.query, 1, stride, tile, d, 16, b.sums, d, 16, 1);
    }
    for (long h = 0; h < heads; h++)
        NAME(product)(d, d, d / 16, b.sums + h * d * d, d, 1, w->self_output + h * d * d, 16,
                      16 * d, b.values + h * d * 16, 16, all * 16, 0);
}

/* Add the self-attention of a tile: query holds sigma(Q) before, joined gets the result after. */
static void NAME(attend_self)(const struct network *net, const struct side *w, const long rows,
                              const float *x, const struct NAME(buffers) b, const long joined_row)
{
    const long d = net->width, heads = net->heads, all = heads * d;
    NAME(times)(rows, d, all, x, w->self_query, b.query);
    NAME(sigmoid)(rows, all, b.query, all);
    for (long r = 0; r < rows; r++)
        for (long h = 0; h < heads; h++) {
            float *query = b.query + r * all + h * d;
            const float factor = 1 / (NAME(dot)(query, b.key_sums + h * d, d) + (float)EPSILON);
            for (long k = 0; k < d; k += LANES)
                STORE(query + k) = LOAD(query + k) * factor;
        }
    NAME(times)(rows, all, d, b.query, b.values, b.added);
    NAME(normalise)(rows, d, b.added, x, w->self_gain, w->self_shift, b.joined, joined_row);
}

/* One layer for one node type: out (count, d) for the given rows of x, or for all. */
static void NAME(update)(const struct network *net, const struct side *w, const struct nodes *nodes,
                         const long count, const int64_t *rows, const float *x, const float *other,
                         float *out, const struct NAME(buffers) b)
{
    const long d = net->width, heads = net->heads, all = heads * d;
    const long joined_row = d * (net->by_self + net->by_cross);
    const long edges = nodes->pointers[nodes->count];
    if (net->by_self)
        NAME(summarise)(net, w, nodes->count, x, b);
    for (long first = 0; first < count; first += TILE) {
        const long tile = count - first < TILE ? count - first : TILE;
        const float *own = x + first * d;
        if (rows) {
            for (long r = 0; r < tile; r++)
                memcpy(b.gathered + r * d, x + rows[first + r] * d, d * sizeof(float));
            own = b.gathered;
        }
        if (net->by_self)
            NAME(attend_self)(net, w, tile, own, b, joined_row);
        if (net->by_cross) {
            NAME(times)(tile, d, all, own, w->cross_query, b.query);
            for (long r = 0; r < tile; r++) {
                const long i = rows ? rows[first + r] : first + r;
#define ROW(D)                                                                                     \
    NAME(attend_row)(nodes->pointers[i], nodes->pointers[i + 1], edges, heads, D,                  \
                     nodes->neighbours, nodes->values, b.query + r * all, other, b.weight,         \
                     b.total, b.mean + r * all)
                if (d == 64)
                    ROW(64);
                else if (d == 32)
                    ROW(32);
                else
                    ROW(d);
#undef ROW
            }
            NAME(times)(tile, all, d, b.mean, w->cross_output, b.added);
            NAME(normalise)(tile, d, b.added, own, w->cross_gain, w->cross_shift,
                            b.joined + (net->by_self ? d : 0), joined_row);
        }
        NAME(times)(tile, joined_row, d, b.joined, w->fusion, b.added);
        NAME(relu)(tile, d, w->fusion_bias, b.added);
        NAME(normalise)(tile, d, b.added, NULL, w->fusion_gain, w->fusion_shift, b.fused, d);
        NAME(times)(tile, d, net->inner, b.fused, w->inner, b.wide);
        NAME(relu)(tile, net->inner, NULL, b.wide);
        NAME(times)(tile, net->inner, d, b.wide, w->outer, b.added);
        NAME(normalise)(tile, d, b.added, b.fused, w->gain, w->shift, out + first * d, d);
    }
}

static void NAME(embed)(const struct nodes *nodes, const long d, float *out,
                        const struct NAME(buffers) b)
{
    for (long first = 0; first < nodes->count; first += TILE) {
        const long rows = nodes->count - first < TILE ? nodes->count - first : TILE;
        float *x = out + first * d;
        NAME(times)(rows, nodes->columns, d, nodes->features + first * nodes->columns, nodes->first,
                    b.added);
        NAME(relu)(rows, d, nodes->first_bias, b.added);
        NAME(times)(rows, d, d, b.added, nodes->second, x);
        for (long r = 0; r < rows; r++)
            for (long k = 0; k < d; k += LANES)
                STORE(x + r * d + k) = LOAD(x + r * d + k) + LOAD(nodes->second_bias + k);
    }
}

static void NAME(add_mean)(const long n, const long d, const float *x, float *out)
{
    memset(out, 0, d * sizeof(float));
    for (long i = 0; i < n; i++)
        for (long k = 0; k < d; k += LANES)
            STORE(out + k) = LOAD(out + k) + LOAD(x + i * d + k);
    for (long k = 0; k < d && n > 0; k++)
        out[k] /= n;
}

static void NAME(read_out)(const struct network *net, const long count, const float *x,
                           const long columns, const struct NAME(buffers) b)
{
    const long d = net->width;
    for (long first = 0; first < count; first += TILE) {
        const long rows = count - first < TILE ? count - first : TILE;
        NAME(times)(rows, columns, d, x + first * columns, net->hidden, b.added);
        NAME(relu)(rows, d, net->hidden_bias, b.added);
        for (long r = 0; r < rows; r++)
            net->scores[first + r] = NAME(dot)(b.added + r * d, net->out, d);
    }
}

/* Returns 0 if memory is short. */
static int NAME(score)(const struct network *net)
{
    const struct nodes *variables = &net->variables, *constraints = &net->constraints;
    const long n = variables->count, m = constraints->count, d = net->width, all = net->heads * d;
    const long edges = variables->pointers[n];
    const long parts[] = {n * d, n * d, m * d, m * d, TILE * d, TILE * (all + 16), TILE * all, TILE * d,
                          TILE * 2 * d, TILE * d, TILE * net->inner, all * d, all * d, all,
                          net->heads * edges, net->heads};
    float *at[16];
    size_t size = 0;
    for (int k = 0; k < 16; k++)
        size += (parts[k] + 15) / 16 * 16;
    if (size > workspace_size) {
        free(workspace);
        workspace_size = 0;
        workspace = aligned_alloc(64, size * sizeof(float));
        if (workspace == NULL)
            return 0;
        workspace_size = size;
    }
    float *next = workspace;
    for (int k = 0; k < 16; k++) {
        at[k] = next;
        next += (parts[k] + 15) / 16 * 16;
    }
    float *V = at[0], *new_V = at[1], *C = at[2], *new_C = at[3];
    const struct NAME(buffers) b = {at[4], at[5], at[6], at[7], at[8], at[9], at[10],
                                    at[11], at[12], at[13], at[14], at[15]};
    NAME(embed)(variables, d, V, b);
    NAME(embed)(constraints, d, C, b);
    long count = n;
    for (long t = 0; t < net->layers; t++) {
        const int last = t == net->layers - 1, some = last && net->candidates >= 0;
        if (some)
            count = net->candidates;
        NAME(update)(net, &net->sides[2 * t], variables, count, some ? net->candidate : NULL, V, C,
                     new_V, b);
        /* The head reads no constraints, so their last update is left out. */
        if (!last || net->pools) {
            NAME(update)(net, &net->sides[2 * t + 1], constraints, m, NULL, C, V, new_C, b);
            float *old = C;
            C = new_C;
            new_C = old;
        }
        float *old = V;
        V = new_V;
        new_V = old;
    }
    if (net->pools) {
        NAME(add_mean)(n, d, V, b.joined);
        NAME(add_mean)(m, d, C, b.joined + d);
        NAME(read_out)(net, 1, b.joined, 2 * d, b);
    } else
        NAME(read_out)(net, count, V, d, b);
    if (workspace_size > LARGE_WORKSPACE) {
        free(workspace);
        workspace = NULL;
        workspace_size = 0;
    }
    return 1;
}
