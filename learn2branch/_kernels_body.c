/* The kernels for one number type and one instruction set; _kernels.c includes this file once for
 * each, with REAL (the type), NAME (a suffix for names) and FMA (a * b + c on vectors) defined.
 *
 * Rows of embeddings have a width that is a multiple of 8, so vectors of 32 bytes divide them. NaN
 * and infinity pass through as they do in the plain versions.
 */

#define VEC NAME(vec)
#define INTS NAME(ints)
#define LANES ((int)(32 / sizeof(REAL)))
#define INLINE static inline __attribute__((always_inline))
#define LOAD(p) (*(const VEC *)(p))
#define STORE(p) (*(VEC *)(p))
#define ALL(x) NAME(all)((REAL)(x))
#define PANEL (2 * LANES) /* columns of a matrix that a product works on at once */
#define TILE 48           /* rows that stay in the cache; a multiple of the 6 worked on at once */

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12 && !defined(__builtin_shufflevector)
#define __builtin_shufflevector(a, b, ...) __builtin_shuffle(a, b, (INTS){__VA_ARGS__})
#endif

typedef REAL VEC __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef INTEGER INTS __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));

INLINE VEC NAME(all)(REAL x)
{
#if SINGLE
    return (VEC){x, x, x, x, x, x, x, x};
#else
    return (VEC){x, x, x, x};
#endif
}

INLINE VEC NAME(select)(INTS condition, VEC yes, VEC no)
{
    return (VEC)((condition & (INTS)yes) | (~condition & (INTS)no));
}

INLINE REAL NAME(total)(VEC v)
{
    REAL sum = 0;
#if SINGLE
    VEC half = v + __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    half += __builtin_shufflevector(half, half, 2, 3, 0, 1, 6, 7, 4, 5);
    sum = half[0] + half[1];
#else
    for (int lane = 0; lane < LANES; lane++)
        sum += v[lane];
#endif
    return sum;
}

/* exp for arguments in [-87, 88]; relative error below 2e-7 in single precision. */
INLINE VEC NAME(exp)(VEC x)
{
#if SINGLE
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    VEC n = FMA(x, ALL(1.44269504088896341f), ALL(shift)) - shift;
    VEC r = FMA(n, ALL(-0.693359375f), x);
    r = FMA(n, ALL(2.12194440e-4f), r);
    VEC p = ALL(1.9875691500e-4f);
    p = FMA(p, r, ALL(1.3981999507e-3f));
    p = FMA(p, r, ALL(8.3334519073e-3f));
    p = FMA(p, r, ALL(4.1665795894e-2f));
    p = FMA(p, r, ALL(1.6666665459e-1f));
    p = FMA(p, r, ALL(5.0000001201e-1f));
    p = FMA(p, r * r, r + 1.0f);
    INTS power = ((INTS)(n + shift) + 127) << 23; /* the low bits of n + shift are n */
    return p * (VEC)power;
#else
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = exp(x[lane]);
    return x;
#endif
}

INLINE VEC NAME(clamp)(VEC x, REAL bound)
{
    x = NAME(select)(x < -bound, ALL(-bound), x);
    return NAME(select)(x > bound, ALL(bound), x);
}

INLINE REAL NAME(dot)(const REAL *a, const REAL *b, const long d)
{
    VEC sum = {0}, odd = {0};
    for (long k = 0; k < d; k += 2 * LANES) {
        sum = FMA(LOAD(a + k), LOAD(b + k), sum);
        if (k + LANES < d)
            odd = FMA(LOAD(a + k + LANES), LOAD(b + k + LANES), odd);
    }
    return NAME(total)(sum + odd);
}

/* The totals of LANES vectors, as one vector. */
INLINE VEC NAME(totals)(const VEC *v)
{
#define PAIR(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#if SINGLE
    VEC twos[4], fours[2];
    for (int k = 0; k < 4; k++)
        twos[k] = PAIR(v[2 * k], v[2 * k + 1], 0, 8, 2, 10, 4, 12, 6, 14)
                  + PAIR(v[2 * k], v[2 * k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int k = 0; k < 2; k++)
        fours[k] = PAIR(twos[2 * k], twos[2 * k + 1], 0, 1, 8, 9, 4, 5, 12, 13)
                   + PAIR(twos[2 * k], twos[2 * k + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return PAIR(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11)
           + PAIR(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    VEC twos[2];
    for (int k = 0; k < 2; k++)
        twos[k] = PAIR(v[2 * k], v[2 * k + 1], 0, 4, 2, 6)
                  + PAIR(v[2 * k], v[2 * k + 1], 1, 5, 3, 7);
    return PAIR(twos[0], twos[1], 0, 1, 4, 5) + PAIR(twos[0], twos[1], 2, 3, 6, 7);
#endif
#undef PAIR
}

/* <q, x[columns[e]]> for LANES entries e; beyond `count` the last one is repeated. */
INLINE VEC NAME(dots)(const REAL *q, const REAL *x, const int64_t *columns, const long count,
                      const long d)
{
    const REAL *row[8];
    VEC sum[8];
    for (int k = 0; k < LANES; k++) {
        row[k] = x + columns[k < count ? k : count - 1] * d;
        sum[k] = LOAD(q) * LOAD(row[k]);
    }
    for (long v = LANES; v < d; v += LANES) {
        const VEC part = LOAD(q + v);
        for (int k = 0; k < LANES; k++)
            sum[k] = FMA(part, LOAD(row[k] + v), sum[k]);
    }
    return NAME(totals)(sum);
}

/* sum of weight[e] * x[column[e]] into out, block by block of columns that fit the registers. */
INLINE void NAME(weighted_sum)(const long begin, const long end, const int64_t *columns,
                               const REAL *weight, const REAL *x, const long d, REAL *out,
                               const REAL factor)
{
    for (long block = 0; block < d; block += 8 * LANES) {
        const long width = d - block < 8 * LANES ? d - block : 8 * LANES;
        VEC sum[8] = {{0}};
        for (long e = begin; e < end; e++) {
            const REAL *row = x + columns[e] * d + block;
            const VEC w = ALL(weight[e]);
            for (long v = 0; v < 8; v++)
                if (v * LANES < width)
                    sum[v] = FMA(w, LOAD(row + v * LANES), sum[v]);
        }
        for (long v = 0; v < 8; v++)
            if (v * LANES < width)
                STORE(out + block + v * LANES) = sum[v] * factor;
    }
}

/* The same for two heads at once, which halves what is read: q is (2, d). Of LANES / 2 entries, the
 * first half of the result is of the first head, the second of the second. */
INLINE VEC NAME(dots_of_two)(const REAL *q, const REAL *x, const int64_t *columns, const long count,
                             const long d)
{
    const REAL *row[4];
    VEC sum[8];
    for (int k = 0; k < LANES / 2; k++) {
        row[k] = x + columns[k < count ? k : count - 1] * d;
        sum[k] = LOAD(q) * LOAD(row[k]);
        sum[LANES / 2 + k] = LOAD(q + d) * LOAD(row[k]);
    }
    for (long v = LANES; v < d; v += LANES) {
        const VEC first = LOAD(q + v), second = LOAD(q + d + v);
        for (int k = 0; k < LANES / 2; k++) {
            const VEC part = LOAD(row[k] + v);
            sum[k] = FMA(first, part, sum[k]);
            sum[LANES / 2 + k] = FMA(second, part, sum[LANES / 2 + k]);
        }
    }
    return NAME(totals)(sum);
}

/* weighted_sum for two heads: `weight` of the second stands `edges` after that of the first. */
INLINE void NAME(weighted_sum_of_two)(const long begin, const long end, const long edges,
                                      const int64_t *columns, const REAL *weight, const REAL *x,
                                      const long d, REAL *out, const REAL *factors)
{
    for (long block = 0; block < d; block += 4 * LANES) {
        const long width = d - block < 4 * LANES ? d - block : 4 * LANES;
        VEC first[4] = {{0}}, second[4] = {{0}};
        for (long e = begin; e < end; e++) {
            const REAL *row = x + columns[e] * d + block;
            const VEC one = ALL(weight[e]), two = ALL(weight[edges + e]);
            for (long v = 0; v < 4; v++)
                if (v * LANES < width) {
                    const VEC part = LOAD(row + v * LANES);
                    first[v] = FMA(one, part, first[v]);
                    second[v] = FMA(two, part, second[v]);
                }
        }
        for (long v = 0; v < 4; v++)
            if (v * LANES < width) {
                STORE(out + block + v * LANES) = first[v] * factors[0];
                STORE(out + d + block + v * LANES) = second[v] * factors[1];
            }
    }
}

/* attend_row for two heads. */
INLINE void NAME(attend_row_of_two)(const long begin, const long end, const long edges, const long d,
                                    const int64_t *columns, const REAL *values, const REAL *q,
                                    const REAL *x, REAL *weight, REAL *total, REAL *out)
{
    VEC sum = {0};
    for (long e = begin; e < end; e += LANES / 2) {
        const long count = end - e < LANES / 2 ? end - e : LANES / 2;
        VEC p = NAME(dots_of_two)(q, x, columns + e, count, d), value = {0};
        for (long k = 0; k < LANES / 2; k++)
            value[k] = value[LANES / 2 + k] = values[e + (k < count ? k : count - 1)];
        p = NAME(exp)(NAME(clamp)(p * value, CLAMP));
        if (count == LANES / 2) {
            memcpy(weight + e, &p, LANES / 2 * sizeof(REAL));
            memcpy(weight + edges + e, (REAL *)&p + LANES / 2, LANES / 2 * sizeof(REAL));
            sum += p;
        } else
            for (long k = 0; k < count; k++) {
                weight[e + k] = p[k];
                weight[edges + e + k] = p[LANES / 2 + k];
                sum[k] += p[k];
                sum[LANES / 2 + k] += p[LANES / 2 + k];
            }
    }
    total[0] = total[1] = (REAL)EPSILON;
    for (int k = 0; k < LANES / 2; k++) {
        total[0] += sum[k];
        total[1] += sum[LANES / 2 + k];
    }
    const REAL factors[2] = {1 / total[0], 1 / total[1]};
    NAME(weighted_sum_of_two)(begin, end, edges, columns, weight, x, d, out, factors);
}

/* One row of cross-attention: q and out are (heads, d); weight is (heads, edges), kept for the
 * backward; total is (heads). */
INLINE void NAME(attend_row)(const long begin, const long end, const long edges, const long heads,
                             const long d, const int64_t *columns, const REAL *values,
                             const REAL *q, const REAL *x, REAL *weight, REAL *total, REAL *out)
{
    if (heads == 2) {
        NAME(attend_row_of_two)(begin, end, edges, d, columns, values, q, x, weight, total, out);
        return;
    }
    for (long h = 0; h < heads; h++) {
        const REAL *query = q + h * d;
        REAL *w = weight + h * edges;
        VEC sum = {0};
        long e = begin;
        for (; e + LANES <= end; e += LANES) {
            const VEC p = LOAD(values + e) * NAME(dots)(query, x, columns + e, LANES, d);
            const VEC weights = NAME(exp)(NAME(clamp)(p, CLAMP));
            STORE(w + e) = weights;
            sum += weights;
        }
        if (e < end) {
            VEC p = NAME(dots)(query, x, columns + e, end - e, d);
            for (long k = 0; k < end - e; k++)
                p[k] *= values[e + k];
            p = NAME(exp)(NAME(clamp)(p, CLAMP));
            for (long k = 0; k < end - e; k++) {
                w[e + k] = p[k];
                sum[k] += p[k];
            }
        }
        total[h] = NAME(total)(sum) + (REAL)EPSILON;
        NAME(weighted_sum)(begin, end, columns, w, x, d, out + h * d, 1 / total[h]);
    }
}

static void NAME(attention_forward)(long first, long last, const struct sizes s, void **a)
{
    const int64_t *pointers = a[0], *columns = a[1];
    const REAL *values = a[2], *q = a[3], *x = a[4];
    REAL *weight = a[5], *total = a[6], *out = a[7];
    for (long i = first; i < last; i++) {
#define ROW(D)                                                                                     \
    NAME(attend_row)(pointers[i], pointers[i + 1], pointers[s.rows], s.heads, D, columns, values,  \
                     q + i * s.heads * s.width, x, weight, total + i * s.heads,                    \
                     out + i * s.heads * s.width)
        /* A width known to the compiler keeps the sums in registers. */
        if (s.width == 64)
            ROW(64);
        else if (s.width == 32)
            ROW(32);
        else
            ROW(s.width);
#undef ROW
    }
}

INLINE void NAME(backward_row)(const long i, const struct sizes s, const long d, void **a)
{
    const int64_t *pointers = a[0], *columns = a[1];
    const REAL *values = a[2], *x = a[3], *weight = a[4], *total = a[5], *out = a[6], *grad = a[7];
    REAL *to_value = a[8], *to_key = a[9], *grad_q = a[10];
    const long edges = pointers[s.rows];
    const REAL lowest = NAME(exp)(ALL(-CLAMP))[0], highest = NAME(exp)(ALL(CLAMP))[0];
    for (long h = 0; h < s.heads; h++) {
        const long node = (i * s.heads + h) * d;
        const REAL *w = weight + h * edges, factor = 1 / total[i * s.heads + h];
        const REAL own = NAME(dot)(grad + node, out + node, d);
        REAL *value = to_value + h * edges, *key = to_key + h * edges;
        for (long e = pointers[i]; e < pointers[i + 1]; e += LANES) {
            const long rest = pointers[i + 1] - e, count = rest < LANES ? rest : LANES;
            const VEC along = NAME(dots)(grad + node, x, columns + e, count, d);
            for (long k = 0; k < count; k++) {
                const REAL now = w[e + k];
                value[e + k] = now * factor;
                /* Where the score was clamped, it has no gradient. */
                key[e + k] = now > lowest && now < highest
                                 ? now * factor * (along[k] - own) * values[e + k]
                                 : 0;
            }
        }
        NAME(weighted_sum)(pointers[i], pointers[i + 1], columns, key, x, d, grad_q + node, 1);
    }
}

/* backward_row for two heads. */
INLINE void NAME(backward_row_of_two)(const long i, const struct sizes s, const long d, void **a)
{
    const int64_t *pointers = a[0], *columns = a[1];
    const REAL *values = a[2], *x = a[3], *weight = a[4], *total = a[5], *out = a[6], *grad = a[7];
    REAL *to_value = a[8], *to_key = a[9], *grad_q = a[10];
    const long edges = pointers[s.rows], node = 2 * i * d;
    const REAL lowest = NAME(exp)(ALL(-CLAMP))[0], highest = NAME(exp)(ALL(CLAMP))[0];
    const REAL ones[2] = {1, 1};
    VEC own = {0}, factor = {0};
    for (int h = 0; h < 2; h++) {
        const REAL along = NAME(dot)(grad + node + h * d, out + node + h * d, d);
        for (int k = 0; k < LANES / 2; k++) {
            own[h * LANES / 2 + k] = along;
            factor[h * LANES / 2 + k] = 1 / total[2 * i + h];
        }
    }
    for (long e = pointers[i]; e < pointers[i + 1]; e += LANES / 2) {
        const long rest = pointers[i + 1] - e, count = rest < LANES / 2 ? rest : LANES / 2;
        const VEC along = NAME(dots_of_two)(grad + node, x, columns + e, count, d);
        VEC now = {0}, value = {0};
        if (count == LANES / 2) {
            memcpy(&now, weight + e, LANES / 2 * sizeof(REAL));
            memcpy((REAL *)&now + LANES / 2, weight + edges + e, LANES / 2 * sizeof(REAL));
            memcpy(&value, values + e, LANES / 2 * sizeof(REAL));
            memcpy((REAL *)&value + LANES / 2, values + e, LANES / 2 * sizeof(REAL));
        } else
            for (long k = 0; k < count; k++) {
                now[k] = weight[e + k];
                now[LANES / 2 + k] = weight[edges + e + k];
                value[k] = value[LANES / 2 + k] = values[e + k];
            }
        const VEC share = now * factor;
        /* Where the score was clamped, it has no gradient. */
        VEC key = share * (along - own) * value;
        key = NAME(select)((now > lowest) & (now < highest), key, ALL(0));
        for (int h = 0; h < 2; h++) {
            const long at = h * edges + e, half = h * LANES / 2;
            if (count == LANES / 2) {
                memcpy(to_value + at, (const REAL *)&share + half, LANES / 2 * sizeof(REAL));
                memcpy(to_key + at, (const REAL *)&key + half, LANES / 2 * sizeof(REAL));
            } else
                for (long k = 0; k < count; k++) {
                    to_value[at + k] = share[half + k];
                    to_key[at + k] = key[half + k];
                }
        }
    }
    NAME(weighted_sum_of_two)(pointers[i], pointers[i + 1], edges, columns, to_key, x, d,
                              grad_q + node, ones);
}

static void NAME(attention_backward_rows)(long first, long last, const struct sizes s, void **a)
{
    for (long i = first; i < last; i++)
        if (s.heads == 2 && s.width == 64)
            NAME(backward_row_of_two)(i, s, 64, a);
        else if (s.heads == 2)
            NAME(backward_row_of_two)(i, s, s.width, a);
        else if (s.width == 64)
            NAME(backward_row)(i, s, 64, a);
        else
            NAME(backward_row)(i, s, s.width, a);
}

INLINE void NAME(backward_column)(const long j, const long h, const struct sizes s, const long d,
                                  void **a)
{
    const int64_t *pointers = a[0], *columns = a[1], *twins = a[2];
    const REAL *q = a[3], *grad = a[4], *to_value = a[5], *to_key = a[6];
    REAL *grad_x = a[7];
    const long edges = pointers[s.rows];
    for (long block = 0; block < d; block += 8 * LANES) {
        const long width = d - block < 8 * LANES ? d - block : 8 * LANES;
        VEC sum[8] = {{0}};
        for (long v = 0; v < 8 && h > 0; v++)
            if (v * LANES < width)
                sum[v] = LOAD(grad_x + j * d + block + v * LANES);
        for (long e = pointers[j]; e < pointers[j + 1]; e++) {
            const long node = (columns[e] * s.heads + h) * d + block;
            const VEC value = ALL(to_value[h * edges + twins[e]]);
            const VEC key = ALL(to_key[h * edges + twins[e]]);
            for (long v = 0; v < 8; v++)
                if (v * LANES < width) {
                    sum[v] = FMA(value, LOAD(grad + node + v * LANES), sum[v]);
                    sum[v] = FMA(key, LOAD(q + node + v * LANES), sum[v]);
                }
        }
        for (long v = 0; v < 8; v++)
            if (v * LANES < width)
                STORE(grad_x + j * d + block + v * LANES) = sum[v];
    }
}

static void NAME(attention_backward_columns)(long first, long last, const struct sizes s, void **a)
{
    /* Head by head over a stretch of columns: what one head reads of a graph fits the cache. */
    for (long stretch = first; stretch < last; stretch += 256)
        for (long h = 0; h < s.heads; h++)
            for (long j = stretch; j < last && j < stretch + 256; j++)
                if (s.width == 64)
                    NAME(backward_column)(j, h, s, 64, a);
                else
                    NAME(backward_column)(j, h, s, s.width, a);
}

/* relu(target + source + value * edge), without losing NaN. */
INLINE VEC NAME(message)(const REAL *target, const REAL *source, VEC value, const REAL *edge)
{
    const VEC z = FMA(value, LOAD(edge), LOAD(target) + LOAD(source));
    return NAME(select)(z <= 0, ALL(0), z);
}

static void NAME(edge_sums_forward)(long first, long last, const struct sizes s, void **a)
{
    const int64_t *pointers = a[0], *columns = a[1];
    const REAL *values = a[2], *target = a[3], *source = a[4], *edge = a[5];
    REAL *out = a[6];
    const long d = s.width;
    for (long i = first; i < last; i++)
        for (long k = 0; k < d; k += 2 * LANES) {
            const int pair = k + LANES < d;
            VEC sum = {0}, next = {0};
            for (long e = pointers[i]; e < pointers[i + 1]; e++) {
                const REAL *row = source + columns[e] * d + k;
                const VEC value = ALL(values[e]);
                sum += NAME(message)(target + i * d + k, row, value, edge + k);
                if (pair)
                    next += NAME(message)(target + i * d + k + LANES, row + LANES, value,
                                          edge + k + LANES);
            }
            STORE(out + i * d + k) = sum;
            if (pair)
                STORE(out + i * d + k + LANES) = next;
        }
}

static void NAME(edge_sums_backward_rows)(long first, long last, const struct sizes s, void **a)
{
    const int64_t *pointers = a[0], *columns = a[1];
    const REAL *values = a[2], *target = a[3], *source = a[4], *edge = a[5], *grad = a[6];
    REAL *grad_target = a[7];
    const long d = s.width;
    for (long i = first; i < last; i++)
        for (long k = 0; k < d; k += LANES) {
            VEC count = {0};
            for (long e = pointers[i]; e < pointers[i + 1]; e++) {
                const VEC z = NAME(message)(target + i * d + k, source + columns[e] * d + k,
                                            ALL(values[e]), edge + k);
                count += NAME(select)(z > 0, ALL(1), ALL(0));
            }
            STORE(grad_target + i * d + k) = count * LOAD(grad + i * d + k);
        }
}

static void NAME(edge_sums_backward_columns)(long first, long last, const struct sizes s, void **a)
{
    const int64_t *pointers = a[0], *columns = a[1];
    const REAL *values = a[2], *target = a[3], *source = a[4], *edge = a[5], *grad = a[6];
    REAL *grad_source = a[7], *grad_edge = a[8];
    const long d = s.width;
    for (long j = first; j < last; j++)
        for (long k = 0; k < d; k += LANES) {
            VEC sum = {0}, weighted = {0};
            for (long e = pointers[j]; e < pointers[j + 1]; e++) {
                const VEC value = ALL(values[e]);
                const VEC z = NAME(message)(target + columns[e] * d + k, source + j * d + k, value,
                                            edge + k);
                const VEC g = NAME(select)(z > 0, LOAD(grad + columns[e] * d + k), ALL(0));
                sum += g;
                weighted = FMA(value, g, weighted);
            }
            STORE(grad_source + j * d + k) = sum;
            STORE(grad_edge + j * d + k) = weighted;
        }
}

/* C (rows x PANEL) = A B, or += with `add`. A[r, k] stands at r * a_row + k * a_step. */
INLINE void NAME(block)(const int rows, const long depth, const REAL *A, const long a_row,
                        const long a_step, const REAL *B, const long b_row, REAL *C,
                        const long c_row, const int add)
{
    VEC c[6][2];
    for (int r = 0; r < rows; r++) {
        c[r][0] = add ? LOAD(C + r * c_row) : ALL(0);
        c[r][1] = add ? LOAD(C + r * c_row + LANES) : ALL(0);
    }
    for (long k = 0; k < depth; k++) {
        const VEC left = LOAD(B + k * b_row), right = LOAD(B + k * b_row + LANES);
        for (int r = 0; r < rows; r++) {
            const VEC a = ALL(A[r * a_row + k * a_step]);
            c[r][0] = FMA(a, left, c[r][0]);
            c[r][1] = FMA(a, right, c[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) {
        STORE(C + r * c_row) = c[r][0];
        STORE(C + r * c_row + LANES) = c[r][1];
    }
}

/* C (rows x PANEL panels) = A B, or +=. A panel of B or C begins b_panel, c_panel after the last. */
INLINE void NAME(product)(const long rows, const long depth, const long panels, const REAL *A,
                          const long a_row, const long a_step, const REAL *B, const long b_row,
                          const long b_panel, REAL *C, const long c_row, const long c_panel,
                          const int add)
{
    for (long p = 0; p < panels; p++) {
        const REAL *b = B + p * b_panel;
        REAL *c = C + p * c_panel;
        long r = 0;
        for (; r + 6 <= rows; r += 6)
            NAME(block)(6, depth, A + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, add);
        for (; r + 2 <= rows; r += 2)
            NAME(block)(2, depth, A + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, add);
        for (; r < rows; r++)
            NAME(block)(1, depth, A + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, add);
    }
}

static __attribute__((unused)) void NAME(sigmoid)(const long rows, const long columns, REAL *x, const long stride)
{
    for (long r = 0; r < rows; r++)
        for (long k = 0; k < columns; k += LANES)
            STORE(x + r * stride + k) =
                1 / (1 + NAME(exp)(-NAME(clamp)(LOAD(x + r * stride + k), 87)));
}

/* Self-attention within each graph. Scratch of one call, for the heads together: */
struct NAME(scratch) {
    REAL *tile, *second, *sums, *transposed, *total;
};

static REAL *NAME(allocate)(struct NAME(scratch) *b, const long d, const long all)
{
    REAL *memory = malloc((2 * TILE * (all + PANEL) + 2 * all * d + 2 * all) * sizeof(REAL));
    b->tile = memory;
    b->second = b->tile + TILE * (all + PANEL);
    b->sums = b->second + TILE * (all + PANEL);
    b->transposed = b->sums + all * d;
    b->total = b->transposed + all * d;
    return memory;
}

/* sums (heads, d, d) += a^T b and total (heads * d) += sum of a, over rows of a tile; head h of b
 * begins b_head after the last. The tile's stride is no power of two: its columns must not share a
 * cache set. */
static void NAME(accumulate)(const long rows, const long heads, const long d, const REAL *a,
                             const REAL *b, const long b_row, const long b_head, REAL *sums)
{
    const long stride = heads * d + PANEL;
    for (long h = 0; h < heads; h++)
        NAME(product)(d, rows, d / PANEL, a + h * d, 1, stride, b + h * b_head, b_row, PANEL,
                      sums + h * d * d, d, PANEL, 1);
}

static void NAME(transpose)(const long heads, const long d, const REAL *in, REAL *out)
{
    for (long h = 0; h < heads; h++)
        for (long i = 0; i < d; i++)
            for (long j = 0; j < d; j++)
                out[(h * d + j) * d + i] = in[(h * d + i) * d + j];
}

/* sums = sigma(K)^T x and total = sum of sigma(K), of one graph. */
static void NAME(summarise_keys)(const long first, const long last, const long heads, const long d,
                                 const REAL *sigma_K, const REAL *x, const struct NAME(scratch) b)
{
    const long all = heads * d, stride = all + PANEL;
    memset(b.sums, 0, all * d * sizeof(REAL));
    memset(b.total, 0, all * sizeof(REAL));
    for (long i = first; i < last; i += TILE) {
        const long rows = last - i < TILE ? last - i : TILE;
        for (long r = 0; r < rows; r++)
            for (long k = 0; k < all; k += LANES) {
                const VEC key = LOAD(sigma_K + (i + r) * all + k);
                STORE(b.tile + r * stride + k) = key;
                STORE(b.total + k) = LOAD(b.total + k) + key;
            }
        NAME(accumulate)(rows, heads, d, b.tile, x + i * d, d, 0, b.sums);
    }
}

static void NAME(self_attention_forward)(long first, long last, const struct sizes s, void **a)
{
    const int64_t *pointers = a[0], *query_pointers = a[1];
    const REAL *sigma_Q = a[2], *sigma_K = a[3], *x = a[4];
    REAL *below = a[5], *out = a[6];
    const long d = s.width, heads = s.heads, all = heads * d;
    struct NAME(scratch) b;
    REAL *memory = NAME(allocate)(&b, d, all);
    for (long g = first; g < last; g++) {
        NAME(summarise_keys)(pointers[g], pointers[g + 1], heads, d, sigma_K, x, b);
        for (long i = query_pointers[g]; i < query_pointers[g + 1]; i += TILE) {
            const long end = query_pointers[g + 1], rows = end - i < TILE ? end - i : TILE;
            for (long h = 0; h < heads; h++) {
                const REAL *query = sigma_Q + i * all + h * d;
                REAL *result = out + i * all + h * d;
                NAME(product)(rows, d, d / PANEL, query, all, 1, b.sums + h * d * d, d, PANEL,
                              result, all, PANEL, 0);
                for (long r = 0; r < rows; r++) {
                    const REAL sum = NAME(dot)(query + r * all, b.total + h * d, d) + (REAL)EPSILON;
                    below[(i + r) * heads + h] = sum;
                    for (long k = 0; k < d; k += LANES)
                        STORE(result + r * all + k) = LOAD(result + r * all + k) / sum;
                }
            }
        }
    }
    free(memory);
}

/* grad = grad * s * (1 - s), the derivative of s = sigma(.). */
INLINE void NAME(through_sigmoid)(const REAL *s, REAL *grad, const long count)
{
    for (long k = 0; k < count; k += LANES)
        STORE(grad + k) = LOAD(grad + k) * LOAD(s + k) * (1 - LOAD(s + k));
}

static void NAME(self_attention_backward)(long first, long last, const struct sizes s, void **a)
{
    const int64_t *pointers = a[0], *query_pointers = a[1];
    const REAL *sigma_Q = a[2], *sigma_K = a[3], *x = a[4], *below = a[5], *out = a[6], *grad = a[7];
    REAL *grad_Q = a[8], *grad_K = a[9], *grad_x = a[10];
    const long d = s.width, heads = s.heads, all = heads * d, stride = all + PANEL;
    struct NAME(scratch) b;
    REAL *memory = NAME(allocate)(&b, d, all), *grad_total = b.total + all;
    for (long g = first; g < last; g++) {
        NAME(summarise_keys)(pointers[g], pointers[g + 1], heads, d, sigma_K, x, b);
        NAME(transpose)(heads, d, b.sums, b.transposed);
        memset(b.sums, 0, all * d * sizeof(REAL)); /* from here on their gradient */
        memset(grad_total, 0, all * sizeof(REAL));
        for (long i = query_pointers[g]; i < query_pointers[g + 1]; i += TILE) {
            const long end = query_pointers[g + 1], rows = end - i < TILE ? end - i : TILE;
            for (long h = 0; h < heads; h++) {
                for (long r = 0; r < rows; r++) {
                    const long node = (i + r) * all + h * d, here = r * stride + h * d;
                    const REAL factor = 1 / below[(i + r) * heads + h];
                    const REAL to_below = -factor * NAME(dot)(grad + node, out + node, d);
                    for (long k = 0; k < d; k += LANES) {
                        const VEC query = LOAD(sigma_Q + node + k);
                        STORE(b.tile + here + k) = query;
                        STORE(b.second + here + k) = LOAD(grad + node + k) * factor;
                        STORE(grad_Q + node + k) = to_below * LOAD(b.total + h * d + k);
                        STORE(grad_total + h * d + k) =
                            FMA(ALL(to_below), query, LOAD(grad_total + h * d + k));
                    }
                }
                NAME(product)(rows, d, d / PANEL, b.second + h * d, stride, 1,
                              b.transposed + h * d * d, d, PANEL, grad_Q + i * all + h * d, all,
                              PANEL, 1);
            }
            NAME(accumulate)(rows, heads, d, b.tile, b.second, stride, d, b.sums);
            NAME(through_sigmoid)(sigma_Q + i * all, grad_Q + i * all, rows * all);
        }
        NAME(transpose)(heads, d, b.sums, b.transposed);
        for (long i = pointers[g]; i < pointers[g + 1]; i += TILE) {
            const long rows = pointers[g + 1] - i < TILE ? pointers[g + 1] - i : TILE;
            for (long r = 0; r < rows; r++)
                memcpy(grad_K + (i + r) * all, grad_total, all * sizeof(REAL));
            for (long h = 0; h < heads; h++) {
                NAME(product)(rows, d, d / PANEL, x + i * d, d, 1, b.transposed + h * d * d, d,
                              PANEL, grad_K + i * all + h * d, all, PANEL, 1);
                NAME(product)(rows, d, d / PANEL, sigma_K + i * all + h * d, all, 1,
                              b.sums + h * d * d, d, PANEL, grad_x + i * d, d, PANEL, h > 0);
            }
            NAME(through_sigmoid)(sigma_K + i * all, grad_K + i * all, rows * all);
        }
    }
    free(memory);
}
