/* A closed-loop MQTT 3.1.1 load generator on epoll: one thread, no library.
 *
 * Publishers keep `window` messages on their way and send the next when one has come back, so a server is never
 * measured by the length of its queues. With QoS 1 a message has come back when its PUBACK is there and, if there are
 * subscribers, when they have it; with QoS 0 when the subscribers have it. Payloads carry the time they were sent.
 *
 * load HOST PORT MODE key=value...
 *   pairs    N publishers, N subscribers, publisher i to subscriber i
 *   fan      1 publisher, N subscribers, each gets everything
 *   ingest   N publishers, no subscriber: QoS 1 acknowledgements only
 *   storm    N connections, each with one subscription, as fast as the server takes them, then closed
 *   idle     as storm, but held open for `seconds`
 * Output is one line of JSON.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { OUT = 1 << 17, IN = 1 << 17 };
/* Where the digits begin in {"at":"...20 digits...","from":"...6 digits...","pad":"..."}. */
enum { AT_TIME = 7, AT_FROM = 37 };
enum role { PUBLISHER, SUBSCRIBER };
enum stage { CONNECTING, GREETED, SUBSCRIBED };

struct client {
    int fd, index;
    enum role role;
    enum stage stage;
    unsigned char *in, *out;
    int in_len, out_len, watching_out;
    uint16_t next_id;
    int on_the_way;      /* publisher: sent and not come back */
    int awaited;         /* publisher: deliveries still missing, over all receivers */
};

static struct client *clients;
static int total, ready, epoll_fd;
static int n = 10, qos = 1, window = 10, size = 64, seconds = 3, parallel = 64;
static const char *user = "load", *password = "load", *prefix = "bench/t", *subscription = "bench/t";
static const char *mode;
static struct sockaddr_in address;
static uint64_t started, ends, received, acknowledged, *latencies;
static uint64_t latency_count, latency_max = 4000000;
static int running, subscribers_per_message;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void flush_out(struct client *c) {
    int sent = 0;
    while (sent < c->out_len) {
        ssize_t got = send(c->fd, c->out + sent, (size_t)(c->out_len - sent), MSG_NOSIGNAL);
        if (got < 0) {
            if (errno == EAGAIN) break;
            die("send");
        }
        sent += (int)got;
    }
    memmove(c->out, c->out + sent, (size_t)(c->out_len - sent));
    c->out_len -= sent;
    int wanted = c->out_len > 0;
    if (wanted != c->watching_out) {
        struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
        c->watching_out = wanted;
    }
}

static unsigned char *room(struct client *c, int bytes) {
    if (!c->out && !(c->out = malloc(OUT))) die("malloc");
    if (c->out_len + bytes > OUT) {
        fprintf(stderr, "load: output buffer full\n");
        exit(2);
    }
    return c->out + c->out_len;
}

static int put_text(unsigned char *p, const char *text) {
    int length = (int)strlen(text);
    p[0] = (unsigned char)(length >> 8);
    p[1] = (unsigned char)length;
    memcpy(p + 2, text, (size_t)length);
    return length + 2;
}

static int put_length(unsigned char *p, int length) {
    int used = 0;
    do {
        p[used] = (unsigned char)(length % 128 | (length > 127 ? 128 : 0));
        length /= 128;
        used++;
    } while (length);
    return used;
}

static void frame(struct client *c, unsigned char first, const unsigned char *body, int length) {
    unsigned char *p = room(c, length + 5);
    p[0] = first;
    int head = 1 + put_length(p + 1, length);
    memcpy(p + head, body, (size_t)length);
    c->out_len += head + length;
}

static void send_connect(struct client *c) {
    unsigned char body[512];
    char id[64];
    snprintf(id, sizeof id, "load-%d-%d", (int)getpid(), c->index);
    int at = put_text(body, "MQTT");
    body[at++] = 4;
    body[at++] = 0xC2;
    body[at++] = 0x0E;
    body[at++] = 0x10;
    at += put_text(body + at, id);
    at += put_text(body + at, user);
    at += put_text(body + at, password);
    frame(c, 0x10, body, at);
    flush_out(c);
}

static void topic_of(char *out, size_t length, const char *base, int index) {
    if (!strcmp(mode, "fan")) index = 0;
    snprintf(out, length, "%s%d", base, index);
}

static void send_subscribe(struct client *c) {
    unsigned char body[512] = {0, 1};
    char topic[256];
    topic_of(topic, sizeof topic, subscription, c->role == SUBSCRIBER && !strcmp(mode, "pairs") ? c->index - n : c->index);
    int at = 2 + put_text(body + 2, topic);
    body[at++] = (unsigned char)qos;
    frame(c, 0x82, body, at);
    flush_out(c);
}

static void send_publish(struct client *c) {
    static unsigned char body[1 << 16];
    char topic[256];
    topic_of(topic, sizeof topic, prefix, c->index);
    int at = put_text(body, topic);
    if (qos) {
        if (++c->next_id == 0) c->next_id = 1;
        body[at++] = (unsigned char)(c->next_id >> 8);
        body[at++] = (unsigned char)c->next_id;
    }
    /* JSON, for servers that read payloads; written compactly, since they may write it anew. */
    int used = snprintf((char *)body + at, 128, "{\"at\":\"%020llu\",\"from\":\"%06d\",\"pad\":\"",
                        (unsigned long long)now_ns(), c->index);
    memset(body + at + used, '.', (size_t)(size > used + 2 ? size - used - 2 : 0));
    int length = size > used + 2 ? size : used + 2;
    memcpy(body + at + length - 2, "\"}", 2);
    frame(c, (unsigned char)(0x30 | qos << 1), body, at + length);
    c->on_the_way++;
    c->awaited += subscribers_per_message;
}

static void fill(struct client *c) {
    if (!running || now_ns() > ends) return;
    while (c->on_the_way < window && c->out_len < OUT / 2) send_publish(c);
    flush_out(c);
}

static void open_client(struct client *c) {
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) die("socket");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) die("connect");
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    c->watching_out = 1;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event) < 0) die("epoll_ctl");
    send_connect(c);
}

static void record(uint64_t sent) {
    if (latency_count < latency_max) latencies[latency_count++] = now_ns() - sent;
}

static struct client *sender_of(const unsigned char *payload) {
    return &clients[atoi((const char *)payload + AT_FROM)];
}

static void delivery(struct client *c, unsigned char first, const unsigned char *body, int length) {
    int at = 2 + (body[0] << 8 | body[1]);
    if (first >> 1 & 3) {
        unsigned char ack[2] = {body[at], body[at + 1]};
        frame(c, 0x40, ack, 2);
        at += 2;
    }
    if (length - at < 40) return;
    received++;
    const unsigned char *payload = body + at;
    record(strtoull((const char *)payload + AT_TIME, NULL, 10));
    struct client *sender = sender_of(payload);
    sender->awaited--;
    sender->on_the_way = (sender->awaited + subscribers_per_message - 1) / subscribers_per_message;
    if (sender->on_the_way <= window / 2) fill(sender);
}

static void packet(struct client *c, unsigned char first, const unsigned char *body, int length) {
    switch (first >> 4) {
    case 2:
        if (body[1]) {
            fprintf(stderr, "load: CONNECT refused with %d\n", body[1]);
            exit(2);
        }
        c->stage = GREETED;
        if (c->role == PUBLISHER) ready++;
        else send_subscribe(c);
        break;
    case 9:
        if (body[2] >= 0x80) {
            fprintf(stderr, "load: SUBSCRIBE refused\n");
            exit(2);
        }
        c->stage = SUBSCRIBED;
        ready++;
        break;
    case 3:
        delivery(c, first, body, length);
        break;
    case 4:
        acknowledged++;
        if (!subscribers_per_message) {
            c->on_the_way--;
            if (c->on_the_way <= window / 2) fill(c);
        }
        break;
    }
}

static int read_client(struct client *c) {
    if (!c->in && !(c->in = malloc(IN))) die("malloc");
    ssize_t got = recv(c->fd, c->in + c->in_len, (size_t)(IN - c->in_len), 0);
    if (got <= 0) {
        if (got < 0 && errno == EAGAIN) return 1;
        return 0;
    }
    c->in_len += (int)got;
    int at = 0;
    while (c->in_len - at >= 2) {
        int length = 0, shift = 0, head = 1;
        for (;;) {
            if (at + head >= c->in_len) goto partial;
            unsigned char byte = c->in[at + head++];
            length |= (byte & 127) << shift;
            shift += 7;
            if (byte < 128) break;
        }
        if (c->in_len - at < head + length) break;
        packet(c, c->in[at], c->in + at + head, length);
        at += head + length;
    }
partial:
    memmove(c->in, c->in + at, (size_t)(c->in_len - at));
    c->in_len -= at;
    if (c->out_len) flush_out(c);
    if (!running && c->in_len == 0 && (!strcmp(mode, "storm") || !strcmp(mode, "idle"))) {
        free(c->in);
        c->in = NULL;
    }
    return 1;
}

static void poll_once(int timeout_ms) {
    struct epoll_event events[256];
    int got = epoll_wait(epoll_fd, events, 256, timeout_ms);
    for (int i = 0; i < got; i++) {
        struct client *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) flush_out(c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !read_client(c)) {
            fprintf(stderr, "load: the server closed client %d\n", c->index);
            exit(2);
        }
    }
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double percentile(double part) {
    return latency_count ? (double)latencies[(uint64_t)((double)(latency_count - 1) * part)] / 1e6 : 0;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: load HOST PORT pairs|fan|ingest|storm|idle [n= qos= window= size= seconds= user= "
                        "password= prefix= subscription= parallel=]\n");
        return 2;
    }
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(argv[2]));
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) die("address");
    mode = argv[3];
    for (int i = 4; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(argv[i], "n")) n = atoi(value);
        else if (!strcmp(argv[i], "qos")) qos = atoi(value);
        else if (!strcmp(argv[i], "window")) window = atoi(value);
        else if (!strcmp(argv[i], "size")) size = atoi(value);
        else if (!strcmp(argv[i], "seconds")) seconds = atoi(value);
        else if (!strcmp(argv[i], "parallel")) parallel = atoi(value);
        else if (!strcmp(argv[i], "user")) user = value;
        else if (!strcmp(argv[i], "password")) password = value;
        else if (!strcmp(argv[i], "prefix")) prefix = value;
        else if (!strcmp(argv[i], "subscription")) subscription = value;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    epoll_fd = epoll_create1(0);
    int load = !strcmp(mode, "pairs") || !strcmp(mode, "fan") || !strcmp(mode, "ingest");
    int publishers = !strcmp(mode, "fan") ? 1 : load ? n : 0;
    int subscribers = !strcmp(mode, "ingest") ? 0 : n;
    total = publishers + subscribers;
    subscribers_per_message = !strcmp(mode, "fan") ? n : !strcmp(mode, "pairs") ? 1 : 0;
    clients = calloc((size_t)total, sizeof *clients);
    latencies = malloc(latency_max * sizeof *latencies);
    if (!clients || !latencies) die("malloc");
    started = now_ns();
    int opened = 0;
    while (ready < total) {
        while (opened < total && opened - ready < parallel) {
            struct client *c = &clients[opened];
            c->index = opened;
            c->role = opened < publishers ? PUBLISHER : SUBSCRIBER;
            open_client(c);
            opened++;
        }
        poll_once(100);
        if (now_ns() - started > 120000000000ull) {
            fprintf(stderr, "load: %d of %d clients were ready after 120 s\n", ready, total);
            return 2;
        }
    }
    double connect_s = (double)(now_ns() - started) / 1e9;
    if (!load) {
        uint64_t until = now_ns() + (uint64_t)(strcmp(mode, "idle") ? 0 : seconds) * 1000000000ull;
        printf("{\"connects\":%d,\"connects_per_s\":%.0f}\n", total, total / connect_s);
        fflush(stdout);
        while (now_ns() < until) poll_once(50);
        return 0;
    }
    /* One second warms up and is not counted. */
    running = 1;
    ends = now_ns() + (uint64_t)(seconds + 1) * 1000000000ull;
    for (int i = 0; i < publishers; i++) fill(&clients[i]);
    uint64_t measured = now_ns() + 1000000000ull;
    while (now_ns() < measured) poll_once(20);
    received = acknowledged = latency_count = 0;
    started = now_ns();
    while (now_ns() < ends) poll_once(20);
    double elapsed = (double)(now_ns() - started) / 1e9;
    qsort(latencies, latency_count, sizeof *latencies, by_value);
    printf("{\"received_per_s\":%.0f,\"acknowledged_per_s\":%.0f,\"p50_ms\":%.4f,\"p99_ms\":%.4f}\n",
           (double)received / elapsed, (double)acknowledged / elapsed, percentile(0.5), percentile(0.99));
    return 0;
}
