/* Scanner for the events of a Chrome/Kineto trace: text in, narrow rows and interned strings out.
 *
 * It takes the text of a "traceEvents" array in pieces and stops only at what is not plain: an event
 * that needs care (`ODD`) or text that is no JSON (`BAD`) is handed back with its place, so that every
 * repair lives in one place, the Python module repair.py. It allocates, never frees rows, and knows
 * nothing of files. analyzer/pure_scanner.py gives the same rows without a compiler; a test compares.
 *
 * Times are integer nanoseconds read from the decimal text of microseconds: a double has steps of
 * 250 ns at epoch microseconds.
 *
 * No Python.h: the library is loaded with ctypes, so that one binary serves every Python version.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum { NEED_MORE = 0, END = 1, ODD = 2, BAD = 3, NO_MEMORY = 4 };

enum {
    HAS_TS = 1, HAS_DUR = 2, HAS_CORRELATION = 4, HAS_EXTERNAL = 8, HAS_BYTES = 16,
    CONTROL = 32, NONFINITE = 64, IS_BEGIN = 128, IS_END = 256
};

typedef struct {
    int64_t ts, dur, index, correlation, external, bytes;
    int32_t category, name, pid, tid, device, stream, shape, config, kernel, flags;
} Row;

typedef struct { uint64_t hash; int32_t id; } Slot;

typedef struct { int32_t ph, cat; int64_t events; } Count;

/* The name of a thread: pid, tid and name one after the other in `texts`. */
typedef struct { int64_t at; int32_t pid, tid, name; } Named;

/* What was read of the document, or of a stretch of it. */
typedef struct {
    Row *rows; int64_t n_rows;
    Count *counts; int64_t n_counts;
    Named *named; int64_t n_named;
    char *texts; int64_t n_texts;
    int64_t events;                 /* events of the part, also the next event's index */
    int64_t trailing_commas;
} Part;

typedef struct {
    Part part;
    char *arena; int64_t arena_len;
    int64_t *offsets; int64_t n_strings;                /* offsets[n_strings] is the arena's end */
    int64_t status, odd_start, odd_end, bad_at;
    int64_t cap_rows, cap_counts, cap_named, cap_texts, arena_cap, cap_strings;
    Slot *slots; int64_t n_slots;
    int32_t *map; int64_t cap_map;                      /* ids in the scanner that parts go to; -1: none yet */
    int32_t keep_python, ph_X, ph_M, ph_B, ph_E, cat_python;
    int64_t last_count;
    char *scratch; int64_t scratch_cap;
} Scanner;

static uint64_t hash_bytes(const char *p, int64_t n) {
    uint64_t h = 0x9E3779B97F4A7C15ull ^ (uint64_t)n, w;
    while (n >= 8) { memcpy(&w, p, 8); h = (h ^ w) * 0xff51afd7ed558ccdull; h ^= h >> 32; p += 8; n -= 8; }
    w = 0; if (n) memcpy(&w, p, (size_t)n);
    h = (h ^ w) * 0xc4ceb9fe1a85ec53ull; h ^= h >> 29;
    return h;
}

static int grow(void **p, int64_t *cap, int64_t need, size_t size) {
    if (need <= *cap) return 1;
    int64_t c = *cap ? *cap : 1024;
    while (c < need) c += c / 2 + 1;
    void *q = realloc(*p, (size_t)c * size);
    if (!q) return 0;
    *p = q; *cap = c;
    return 1;
}

static int rehash(Scanner *s) {
    int64_t n = s->n_slots ? s->n_slots * 2 : 4096;
    Slot *t = malloc((size_t)n * sizeof(Slot));
    if (!t) return 0;
    for (int64_t i = 0; i < n; i++) t[i].id = -1;
    for (int64_t i = 0; i < s->n_slots; i++) {
        if (s->slots[i].id < 0) continue;
        int64_t j = (int64_t)(s->slots[i].hash & (uint64_t)(n - 1));
        while (t[j].id >= 0) j = (j + 1) & (n - 1);
        t[j] = s->slots[i];
    }
    free(s->slots); s->slots = t; s->n_slots = n;
    return 1;
}

/* The slot of a text, or the empty one where it belongs. */
static Slot *slot_of(const Scanner *s, uint64_t h, const char *p, int64_t n) {
    int64_t mask = s->n_slots - 1, j = (int64_t)(h & (uint64_t)mask);
    while (s->slots[j].id >= 0) {
        if (s->slots[j].hash == h) {
            int64_t a = s->offsets[s->slots[j].id], b = s->offsets[s->slots[j].id + 1];
            if (b - a == n && memcmp(s->arena + a, p, (size_t)n) == 0) break;
        }
        j = (j + 1) & mask;
    }
    return s->slots + j;
}

EXPORT int32_t hb_intern(Scanner *s, const char *p, int64_t n) {
    if (s->n_strings * 2 >= s->n_slots && !rehash(s)) return -2;
    uint64_t h = hash_bytes(p, n);
    Slot *slot = slot_of(s, h, p, n);
    if (slot->id >= 0) return slot->id;
    if (!grow((void **)&s->arena, &s->arena_cap, s->arena_len + n, 1)) return -2;
    if (!grow((void **)&s->offsets, &s->cap_strings, s->n_strings + 2, sizeof(int64_t))) return -2;
    memcpy(s->arena + s->arena_len, p, (size_t)n);
    s->offsets[s->n_strings] = s->arena_len;
    s->arena_len += n;
    s->offsets[s->n_strings + 1] = s->arena_len;
    slot->hash = h; slot->id = (int32_t)s->n_strings;
    return (int32_t)s->n_strings++;
}

EXPORT int32_t hb_count(Scanner *s, int32_t ph, int32_t cat, int64_t by) {
    Part *p = &s->part;
    int64_t i = s->last_count;
    if (i >= p->n_counts || p->counts[i].ph != ph || p->counts[i].cat != cat) {
        for (i = 0; i < p->n_counts; i++)
            if (p->counts[i].ph == ph && p->counts[i].cat == cat) break;
        if (i == p->n_counts) {
            if (!grow((void **)&p->counts, &s->cap_counts, i + 1, sizeof(Count))) return 0;
            p->counts[p->n_counts++] = (Count){ph, cat, 0};
        }
        s->last_count = i;
    }
    p->counts[i].events += by;
    return 1;
}

EXPORT int32_t hb_add(Scanner *s, const Row *row) {
    if (!grow((void **)&s->part.rows, &s->cap_rows, s->part.n_rows + 1, sizeof(Row))) return 0;
    s->part.rows[s->part.n_rows++] = *row;
    return 1;
}

/* Note the name of a thread; a text of no length may be NULL. */
EXPORT int32_t hb_name(Scanner *s, const char *pid, int32_t n_pid, const char *tid, int32_t n_tid, const char *name, int32_t n_name) {
    Part *p = &s->part;
    int64_t at = p->n_texts;
    if (!grow((void **)&p->named, &s->cap_named, p->n_named + 1, sizeof(Named)) ||
        !grow((void **)&p->texts, &s->cap_texts, at + n_pid + n_tid + n_name + 1, 1)) return 0;
    p->named[p->n_named++] = (Named){at, n_pid, n_tid, n_name};
    if (n_pid) memcpy(p->texts + at, pid, (size_t)n_pid);
    if (n_tid) memcpy(p->texts + at + n_pid, tid, (size_t)n_tid);
    if (n_name) memcpy(p->texts + at + n_pid + n_tid, name, (size_t)n_name);
    p->n_texts += n_pid + n_tid + n_name;
    return 1;
}

/* Forget what was read since the last part; its memory is used again, and the strings stay. */
EXPORT void hb_drop(Scanner *s) {
    Part *p = &s->part;
    p->n_rows = p->n_counts = p->n_named = p->n_texts = p->events = p->trailing_commas = 0;
}

/* The id in `into` of a string of `from`; below 0 if there is no memory. */
static int32_t moved(Scanner *into, const Scanner *from, int32_t id) {
    if (from->map[id] < 0) {
        int64_t at = from->offsets[id];
        from->map[id] = hb_intern(into, from->arena + at, from->offsets[id + 1] - at);
    }
    return from->map[id];
}

/* Append what `from` read since it last handed over to `into`, as what comes next in the document:
 * with ids of the strings of `into`, in the order in which rows use them. */
EXPORT int32_t hb_append(Scanner *into, Scanner *from) {
    Part *p = &from->part;
    int64_t had = from->cap_map;
    if (!grow((void **)&from->map, &from->cap_map, from->n_strings, sizeof(int32_t))) return 0;
    for (int64_t i = had; i < from->cap_map; i++) from->map[i] = -1;
    for (int64_t i = 0; i < p->n_rows; i++) {
        Row *row = p->rows + i;
        row->index += into->part.events;
        int32_t *ids[9] = {&row->category, &row->name, &row->kernel, &row->pid, &row->tid, &row->device,
                           &row->stream, &row->shape, &row->config};
        for (int j = 0; j < 9; j++)
            if (*ids[j] >= 0 && (*ids[j] = moved(into, from, *ids[j])) < 0) return 0;
        if (!hb_add(into, row)) return 0;
    }
    for (int64_t i = 0; i < p->n_counts; i++) {
        int32_t ph = moved(into, from, p->counts[i].ph), cat = moved(into, from, p->counts[i].cat);
        if (ph < 0 || cat < 0 || !hb_count(into, ph, cat, p->counts[i].events)) return 0;
    }
    for (int64_t i = 0; i < p->n_named; i++) {
        const Named *n = p->named + i;
        const char *pid = p->texts + n->at, *tid = pid + n->pid, *name = tid + n->tid;
        if (!hb_name(into, pid, n->pid, tid, n->tid, name, n->name)) return 0;
    }
    into->part.events += p->events;
    into->part.trailing_commas += p->trailing_commas;
    hb_drop(from);
    return 1;
}

/* The first name from `i` on of a thread whose pid and tid are strings of `s`; -1 if there is none. */
EXPORT int64_t hb_next_named(const Scanner *s, int64_t i) {
    const Part *part = &s->part;
    for (; i < part->n_named; i++) {
        const Named *n = part->named + i;
        const char *pid = part->texts + n->at, *tid = pid + n->pid;
        if (slot_of(s, hash_bytes(pid, n->pid), pid, n->pid)->id >= 0 &&
            slot_of(s, hash_bytes(tid, n->tid), tid, n->tid)->id >= 0) return i;
    }
    return -1;
}

EXPORT void hb_free(Scanner *s) {
    if (!s) return;
    free(s->part.rows); free(s->part.counts); free(s->part.named); free(s->part.texts);
    free(s->arena); free(s->offsets); free(s->slots); free(s->scratch); free(s->map); free(s);
}

/* Character classes for the inner loops. */
#define C_SPACE 1
#define C_STOP 2     /* ends a bare word: , ] } white space */
#define C_STRING 4   /* needs a look inside a string: quote, backslash, control, non-ASCII */
static uint8_t CLASS[256];
static int class_ready = 0;
static void make_classes(void) {
    for (int i = 0; i < 256; i++) {
        uint8_t c = 0;
        if (i == ' ' || i == '\n' || i == '\r' || i == '\t') c |= C_SPACE | C_STOP;
        if (i == ',' || i == ']' || i == '}' || i == ':' || i == '{' || i == '[' || i == '"') c |= C_STOP;
        if (i == '"' || i == '\\' || i < 0x20 || i >= 0x80) c |= C_STRING;
        CLASS[i] = c;
    }
    class_ready = 1;
}

EXPORT Scanner *hb_new(int32_t keep_python) {
    Scanner *s = calloc(1, sizeof(Scanner));
    if (!s) return NULL;
    s->keep_python = keep_python;
    if (!rehash(s)) { free(s); return NULL; }
    if (!class_ready) make_classes();
    hb_intern(s, "", 0);                                /* id 0 is the empty string */
    s->ph_X = hb_intern(s, "X", 1);
    s->ph_M = hb_intern(s, "M", 1);
    s->ph_B = hb_intern(s, "B", 1);
    s->ph_E = hb_intern(s, "E", 1);
    s->cat_python = hb_intern(s, "python_function", 15);
    return s;
}

typedef struct { const char *p, *end; int flags, odd; const char *bad; } In;

#define U(c) ((uint8_t)(c))
static inline void skip_space(In *in) { while (in->p < in->end && (CLASS[U(*in->p)] & C_SPACE)) in->p++; }

static int valid_utf8(const char *q, const char *e) {
    const uint8_t *p = (const uint8_t *)q, *end = (const uint8_t *)e;
    while (p < end) {
        uint8_t c = *p;
        int n; uint32_t v, low;
        if (c < 0x80) { p++; continue; }
        if (c >= 0xC2 && c <= 0xDF) { n = 1; v = c & 0x1F; low = 0x80; }
        else if ((c & 0xF0) == 0xE0) { n = 2; v = c & 0x0F; low = 0x800; }
        else if (c >= 0xF0 && c <= 0xF4) { n = 3; v = c & 0x07; low = 0x10000; }
        else return 0;
        if (end - p <= n) return 0;
        for (int i = 1; i <= n; i++) { if ((p[i] & 0xC0) != 0x80) return 0; v = (v << 6) | (p[i] & 0x3F); }
        if (v < low || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) return 0;
        p += n + 1;
    }
    return 1;
}

/* Results of the value readers: 1 read, 0 the text ends first, -1 no JSON (in->bad says where). */

/* A string; *a..*b is its inside, as written. `kept`: the caller keeps it, so it must be plain. */
static int read_string(In *in, const char **a, const char **b, int kept) {
    const char *p = in->p + 1, *end = in->end;
    int plain = 1, high = 0;
    *a = p;
    for (;;) {
        while (p < end && !(CLASS[U(*p)] & C_STRING)) p++;
        if (p >= end) return 0;
        uint8_t c = U(*p);
        if (c == '"') break;
        if (c == '\\') {
            if (p + 1 >= end) return 0;
            char e = p[1];
            if (e == 'u') {
                if (p + 6 > end) return 0;
                for (int i = 2; i < 6; i++) {
                    char x = p[i];
                    if (!((x >= '0' && x <= '9') || (x >= 'a' && x <= 'f') || (x >= 'A' && x <= 'F'))) in->odd = 1;
                }
                p += 2;
            } else {
                if (!(e == '"' || e == '\\' || e == '/' || e == 'b' || e == 'f' || e == 'n' || e == 'r' || e == 't'))
                    in->odd = 1;
                p += 2;
            }
            plain = 0;
        } else if (c < 0x20) { in->flags |= CONTROL; p++; }
        else { high = 1; p++; }
    }
    *b = p;
    if (kept && (!plain || (high && !valid_utf8(*a, p)))) in->odd = 1;
    in->p = p + 1;
    return 1;
}

static int read_word(In *in, const char **a, const char **b) {
    const char *p = in->p;
    *a = p;
    while (p < in->end && !(CLASS[U(*p)] & C_STOP)) p++;
    if (p >= in->end) return 0;
    if (p == *a) { in->bad = p; return -1; }
    *b = p; in->p = p;
    char c = **a;
    int64_t n = p - *a;
    int number = (c >= '0' && c <= '9') || (c == '-' && n > 1 && (*a)[1] >= '0' && (*a)[1] <= '9');
    if (!number && !(n == 4 && (!memcmp(*a, "true", 4) || !memcmp(*a, "null", 4))) &&
        !(n == 5 && !memcmp(*a, "false", 5)))
        in->flags |= NONFINITE;
    return 1;
}

static int skip_value(In *in, const char **a, const char **b) {
    const char *x, *y;
    skip_space(in);
    if (in->p >= in->end) return 0;
    const char *start = in->p;
    *a = start;
    char c = *in->p;
    int r;
    if (c == '"') { r = read_string(in, &x, &y, 0); *b = in->p; return r; }
    if (c != '{' && c != '[') { r = read_word(in, &x, &y); *b = in->p; return r; }
    /* What may come next in the container: a value, a key, a colon, or a comma after a value. */
    enum { VALUE, KEY_, COLON, AFTER } next = VALUE;
    char stack[64];
    int depth = 0, first = 1;
    do {
        skip_space(in);
        if (in->p >= in->end) return 0;
        c = *in->p;
        in->bad = in->p;
        if (c == '"') {
            if (next != VALUE && next != KEY_) return -1;
            if ((r = read_string(in, &x, &y, 0)) <= 0) return r;
            next = next == KEY_ ? COLON : AFTER;
            first = 0;
        } else if (c == '{' || c == '[') {
            if (next != VALUE || depth == 64) return -1;
            stack[depth++] = c == '{' ? '}' : ']';
            next = c == '{' ? KEY_ : VALUE;
            first = 1;
            in->p++;
        } else if (c == '}' || c == ']') {
            if (!depth || stack[depth - 1] != c || !(next == AFTER || first)) return -1;
            depth--;
            next = AFTER;
            first = 0;
            in->p++;
        } else if (c == ',') {
            if (next != AFTER) return -1;
            next = stack[depth - 1] == '}' ? KEY_ : VALUE;
            in->p++;
        } else if (c == ':') {
            if (next != COLON) return -1;
            next = VALUE;
            in->p++;
        } else {
            if (next != VALUE) return -1;
            if ((r = read_word(in, &x, &y)) <= 0) return r;
            next = AFTER;
            first = 0;
        }
    } while (depth);
    *b = in->p;
    return 1;
}

/* Microseconds in decimal text -> nanoseconds, half away from zero. 0: not plain. */
static int to_ns(const char *a, const char *b, int64_t *out) {
    int neg = 0, digits = 0;
    int64_t v = 0, f = 0, scale = 100;
    if (a < b && *a == '-') { neg = 1; a++; }
    const char *first = a;
    while (a < b && *a >= '0' && *a <= '9') { v = v * 10 + (*a++ - '0'); if (++digits > 16) return 0; }
    if (a == first || v > 9223372036854773) return 0;
    if (a < b && *a == '.') {
        a++;
        first = a;
        while (a < b && *a >= '0' && *a <= '9') {
            if (scale) { f += (*a - '0') * scale; scale /= 10; }
            else if (a == first + 3 && *a >= '5') f += 1;
            a++;
        }
        if (a == first) return 0;
    }
    if (a != b) return 0;
    v = v * 1000 + f;
    *out = neg ? -v : v;
    return 1;
}

static int to_int(const char *a, const char *b, int64_t *out) {
    int neg = 0, digits = 0;
    int64_t v = 0;
    if (a < b && *a == '-') { neg = 1; a++; }
    if (a == b) return 0;
    while (a < b) {
        if (*a < '0' || *a > '9' || ++digits > 18) return 0;
        v = v * 10 + (*a++ - '0');
    }
    *out = neg ? -v : v;
    return 1;
}

#define KEY(text) (n == (int64_t)sizeof(text) - 1 && !memcmp(k, text, sizeof(text) - 1))
typedef struct { const char *a, *b; } Span;
enum { COLL_NAME, COLL_GROUP, COLL_RANKS, COLL_IN, COLL_OUT, COLL_DTYPE, COLL_PARTS };
typedef struct {
    Span device, stream, ran_on, context, sycl, level_zero, kernel, label, shape[4], config[4], coll[COLL_PARTS];
} Args;

/* Whether a string is text as it stands: no escapes, UTF-8. */
static int plain(const char *a, const char *b) {
    return !memchr(a, '\\', (size_t)(b - a)) && valid_utf8(a, b);
}

static int read_args(In *in, Row *row, Args *args) {
    const char *k, *ke, *a, *b;
    int r;
    skip_space(in);
    if (in->p >= in->end) return 0;
    if (*in->p != '{') { r = skip_value(in, &a, &b); if (r == 1 && !(b - a == 4 && !memcmp(a, "null", 4))) in->odd = 1; return r; }
    in->p++;
    for (int first = 1;; first = 0) {
        skip_space(in);
        if (in->p >= in->end) return 0;
        if (*in->p == '}' && first) { in->p++; return 1; }
        if (*in->p != '"') { in->bad = in->p; return -1; }
        if ((r = read_string(in, &k, &ke, 0)) <= 0) return r;
        int64_t n = ke - k;
        skip_space(in);
        if (in->p >= in->end) return 0;
        if (*in->p != ':') { in->bad = in->p; return -1; }
        in->p++;
        skip_space(in);
        if (in->p >= in->end) return 0;
        if ((r = skip_value(in, &a, &b)) <= 0) return r;
        Span span = {a, b};
        int null = b - a == 4 && !memcmp(a, "null", 4);
        switch (k[0]) {
        case 'c':
            if (KEY("correlation") && !null) { if (to_int(a, b, &row->correlation)) row->flags |= HAS_CORRELATION; else in->odd = 1; }
            else if (KEY("context") && !null) args->context = span;
            break;
        case 'E': case 'e':
            if ((KEY("External id") || KEY("external id")) && !null) { if (to_int(a, b, &row->external)) row->flags |= HAS_EXTERNAL; else in->odd = 1; } break;
        case 'd':
            if (KEY("device") && !null) args->device = span;
            else if (KEY("dtype")) args->coll[COLL_DTYPE] = span;
            break;
        case 'P':
            if (KEY("Process Group Name")) args->coll[COLL_GROUP] = span;
            else if (KEY("Process Group Ranks")) args->coll[COLL_RANKS] = span;
            break;
        case 'O': if (KEY("Out msg nelems")) args->coll[COLL_OUT] = span; break;
        case 's':
            if (KEY("stream") && !null) args->stream = span;
            else if (KEY("shared memory")) args->config[2] = span;
            else if (KEY("sycl queue") && !null) args->sycl = span;
            break;
        case 'o': if (KEY("original_stream") && !null) args->ran_on = span; break;
        case 'l': if (KEY("l0 queue") && !null) args->level_zero = span; break;
        case 'g': if (KEY("grid")) args->config[0] = span; break;
        case 'b':
            if (KEY("block")) args->config[1] = span;
            else if (KEY("bytes") && !null) { if (to_int(a, b, &row->bytes)) row->flags |= HAS_BYTES; else in->odd = 1; }
            break;
        case 'r': if (KEY("registers per thread")) args->config[3] = span; break;
        case 'k': if (KEY("kernel") && *a == '"') { args->kernel = (Span){a + 1, b - 1}; in->odd |= !plain(a, b); } break;
        case 'n': if (KEY("name") && !null) args->label = span; break;
        case 'I':
            if (KEY("Input Dims") || KEY("Input dims")) args->shape[0] = span;
            else if (KEY("Input type")) args->shape[1] = span;
            else if (KEY("Input Strides")) args->shape[2] = span;
            else if (KEY("In msg nelems")) args->coll[COLL_IN] = span;
            break;
        case 'C':
            if (KEY("Concrete Inputs")) args->shape[3] = span;
            else if (KEY("Collective name")) args->coll[COLL_NAME] = span;
            break;
        default: break;
        }
        skip_space(in);
        if (in->p >= in->end) return 0;
        if (*in->p == ',') { in->p++; continue; }
        if (*in->p == '}') { in->p++; return 1; }
        in->bad = in->p;
        return -1;
    }
}

/* Some texts, a unit separator between them, as one interned string; -1 if none is there. */
static int32_t join(Scanner *s, const Span *t, int parts) {
    int64_t n = parts - 1;
    int any = 0;
    for (int i = 0; i < parts; i++) { n += t[i].b - t[i].a; any |= t[i].a != NULL; }
    if (!any) return -1;
    if (!grow((void **)&s->scratch, &s->scratch_cap, n, 1)) return -2;
    char *p = s->scratch;
    for (int i = 0; i < parts; i++) {
        if (i) *p++ = 0x1f;
        if (t[i].a) { memcpy(p, t[i].a, (size_t)(t[i].b - t[i].a)); p += t[i].b - t[i].a; }
    }
    return hb_intern(s, s->scratch, n);
}

static int32_t intern(Scanner *s, Span text) { return text.a ? hb_intern(s, text.a, text.b - text.a) : -1; }

/* Whether an id is a number, a plain string, or not there. */
static int is_id(Span id) {
    return !id.a || *id.a == '-' || (*id.a >= '0' && *id.a <= '9') || (*id.a == '"' && plain(id.a, id.b));
}

/* One event at in->p ('{'). Appends a row if it is a plain X event of a kept category. */
static int read_event(Scanner *s, In *in) {
    Row row;
    Args args;
    Span name = {NULL, NULL}, pid = {NULL, NULL}, tid = {NULL, NULL};
    const char *k, *ke, *a, *b;
    int32_t ph = 0, cat = 0;
    int r;
    memset(&args, 0, sizeof args);
    memset(&row, 0, sizeof row);
    row.pid = row.tid = row.device = row.stream = row.shape = row.config = row.kernel = -1;
    in->flags = 0; in->odd = 0;
    in->p++;
    for (int first = 1;; first = 0) {
        skip_space(in);
        if (in->p >= in->end) return 0;
        if (*in->p == '}' && first) { in->p++; break; }
        if (*in->p != '"') { in->bad = in->p; return -1; }
        if ((r = read_string(in, &k, &ke, 0)) <= 0) return r;
        int64_t n = ke - k;
        skip_space(in);
        if (in->p >= in->end) return 0;
        if (*in->p != ':') { in->bad = in->p; return -1; }
        in->p++;
        skip_space(in);
        if (in->p >= in->end) return 0;
        if (KEY("args")) { if ((r = read_args(in, &row, &args)) <= 0) return r; }
        else if (KEY("name") && *in->p == '"') {
            if ((r = read_string(in, &a, &b, 1)) <= 0) return r;
            name.a = a; name.b = b;
        } else if ((KEY("ph") || KEY("cat")) && *in->p == '"') {
            if ((r = read_string(in, &a, &b, 1)) <= 0) return r;
            if (n == 2) ph = hb_intern(s, a, b - a); else cat = hb_intern(s, a, b - a);
        } else {
            if ((r = skip_value(in, &a, &b)) <= 0) return r;
            int null = b - a == 4 && !memcmp(a, "null", 4);
            if (KEY("ts") && !null) { if (to_ns(a, b, &row.ts)) row.flags |= HAS_TS; else in->odd = 1; }
            else if (KEY("dur") && !null) { if (to_ns(a, b, &row.dur)) row.flags |= HAS_DUR; else in->odd = 1; }
            else if (KEY("pid") && !null) pid = (Span){a, b};
            else if (KEY("tid") && !null) tid = (Span){a, b};
            else if (KEY("name") || KEY("ph") || KEY("cat")) in->odd = 1;
        }
        skip_space(in);
        if (in->p >= in->end) return 0;
        if (*in->p == ',') { in->p++; continue; }
        if (*in->p == '}') { in->p++; break; }
        in->bad = in->p;
        return -1;
    }
    if (in->odd || (in->flags & (CONTROL | NONFINITE))) { in->odd = 1; return 1; }
    if (ph == s->ph_M && name.b - name.a == 11 && !memcmp(name.a, "thread_name", 11) && args.label.a) {
        Span label = {args.label.a + 1, args.label.b - 1};
        if (!is_id(pid) || !is_id(tid) || label.a[-1] != '"' || !plain(label.a, label.b)) { in->odd = 1; return 1; }
        if (!hb_name(s, pid.a, (int32_t)(pid.b - pid.a), tid.a, (int32_t)(tid.b - tid.a), label.a, (int32_t)(label.b - label.a))) return -2;
    }
    row.index = s->part.events++;
    if (!hb_count(s, ph, cat, 1)) return -2;
    int half = ph == s->ph_B ? IS_BEGIN : ph == s->ph_E ? IS_END : 0;
    if (!half && (ph != s->ph_X || (cat == s->cat_python && !s->keep_python))) return 1;
    row.category = cat;
    row.flags |= in->flags | half;
    row.name = name.a ? hb_intern(s, name.a, name.b - name.a) : 0;
    /* An event may be shown on a lane that is no stream; an Intel GPU has queues. */
    Span streams[4] = {args.ran_on, args.stream, args.sycl, args.level_zero};
    for (int i = 3; i >= 0; i--) if (streams[i].a) args.stream = streams[i];
    row.kernel = intern(s, args.kernel.a ? args.kernel : args.context);
    row.pid = intern(s, pid);
    row.tid = intern(s, tid);
    row.device = intern(s, args.device);
    row.stream = intern(s, args.stream);
    row.shape = join(s, args.shape, 4);
    if (row.shape == -1 && args.coll[COLL_NAME].a) row.shape = join(s, args.coll, COLL_PARTS);
    row.config = join(s, args.config, 4);
    if (row.name == -2 || row.kernel == -2 || row.pid == -2 || row.tid == -2 || row.device == -2 ||
        row.stream == -2 || row.shape == -2 || row.config == -2 || !hb_add(s, &row)) return -2;
    return 1;
}

/* Read events of buf[start, len) that are whole; returns the place to go on from.
 * status: NEED_MORE | END (after the ']') | ODD (event odd_start..odd_end is whole but not plain) |
 * BAD (no JSON at bad_at, in the event that starts at odd_start) | NO_MEMORY. */
EXPORT int64_t hb_scan(Scanner *s, const char *buf, int64_t len, int64_t start) {
    In in = {buf + start, buf + len, 0, 0, NULL};
    int comma = 0;
    for (;;) {
        const char *before = in.p;
        while (in.p < in.end && ((CLASS[U(*in.p)] & C_SPACE) || *in.p == ',')) { comma |= *in.p == ','; in.p++; }
        if (in.p >= in.end) { s->status = NEED_MORE; return before - buf; }
        if (*in.p == ']') { s->part.trailing_commas += comma; s->status = END; return in.p + 1 - buf; }
        const char *event = in.p;
        s->odd_start = event - buf;
        if (*event != '{') { s->status = BAD; s->bad_at = event - buf; return event - buf; }
        int r = read_event(s, &in);
        if (r == 0) { s->status = NEED_MORE; return event - buf; }
        if (r == -1) { s->status = BAD; s->bad_at = in.bad - buf; return event - buf; }
        if (r == -2) { s->status = NO_MEMORY; return event - buf; }
        if (in.odd) { s->status = ODD; s->odd_end = in.p - buf; return in.p - buf; }
        comma = 0;
    }
}

/* Parent of each interval: the last earlier one (in the given order) that is still open at its start.
 * Sorted by start, then longest first. parent[i] = -1 at the top. */
EXPORT void hb_parents(const int64_t *start, const int64_t *end, int64_t n, int64_t *parent, int64_t *stack) {
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        while (top && end[stack[top - 1]] <= start[i]) top--;
        parent[i] = top ? stack[top - 1] : -1;
        stack[top++] = i;
    }
}

EXPORT void *PyInit__scan(void) { return NULL; }
