// Package consulclient creates clients of Consul's HTTP API, for the source and the fleet.
//
// Its input is a Config. Its output is HashiCorp's *api.Client on a transport for long-running
// programs. The transport reads tokens, certificates and CAs again when their files change. It
// detects dead connections, keeps connections for thousands of blocking queries, and limits the
// size of answers. The package never sends requests on its own, and never sends a token to any
// address except the configured one.
package consulclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// DefaultAddress is the default address of a host's Consul agent.
const DefaultAddress = "127.0.0.1:8500"

// MaxAnswer is the maximum size of an answer in bytes. Consul's largest answers (a full read of a
// tree's keys, with up to 512 KiB per value) are much smaller.
const MaxAnswer = 256 << 20

// Title returns the server's address, for messages.
func (c Config) Title() string {
	if c.Address == "" {
		return DefaultAddress
	}
	return c.Address
}

// These timeouts detect a peer that disappeared without closing the connection, after about half a
// minute.
const (
	dialTimeout  = 5 * time.Second
	probeIdle    = 15 * time.Second
	probeEvery   = 5 * time.Second
	probeCount   = 3
	idleConnLife = 90 * time.Second
)

// New returns a client and a function that closes its idle connections. It does not connect.
// Requests fail while the server is unavailable or the token file does not exist. The error names
// an invalid part of the configuration.
func New(c Config) (client *api.Client, closeIdle func(), err error) {
	scheme, host, socket, err := split(c.Title())
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{
		// Each blocking query has its own HTTP/1.1 connection. The next query follows at once, so
		// closing the connection in between would only cost time.
		MaxIdleConnsPerHost: 1 << 14,
		IdleConnTimeout:     idleConnLife,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: probeIdle, PingTimeout: probeEvery * probeCount},
	}
	dialer := &net.Dialer{Timeout: dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeIdle, Interval: probeEvery, Count: probeCount}}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if socket != "" {
			network, address = "unix", socket
		}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &welcomed{Conn: conn}, nil
	}
	transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		config, err := c.tls(address)
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
	}
	asker := &http.Client{
		Transport: &roundTripper{next: transport, token: &token{fixed: c.Token, path: c.TokenFile}},
		// Consul doesn't redirect, and the token must not be sent to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	client, err = api.NewClient(&api.Config{Address: host, Scheme: scheme, Datacenter: c.Datacenter, Namespace: c.Namespace, Partition: c.Partition,
		// The transport replaces this token. Without a token here, HashiCorp's client looks for one
		// in the environment, and fails if its file is missing.
		Token:     "unused",
		Transport: transport, HttpClient: asker})
	if err != nil {
		return nil, nil, fmt.Errorf("consul at %s: %w", c.Title(), err)
	}
	return client, transport.CloseIdleConnections, nil
}

// split splits an address into its parts. For a socket the host is only a placeholder for requests.
func split(address string) (scheme, host, socket string, err error) {
	scheme, rest, written := strings.Cut(address, "://")
	if !written {
		scheme, rest = "http", address
	}
	switch scheme {
	case "unix":
		if !strings.HasPrefix(rest, "/") {
			return "", "", "", fmt.Errorf("consul address %q: the path of a socket begins with /", address)
		}
		return "http", "localhost", rest, nil
	case "http", "https":
		return scheme, strings.TrimSuffix(rest, "/"), "", nil
	}
	return "", "", "", fmt.Errorf("consul address %q: use host:port, http://, https:// or unix://", address)
}

// tls returns the TLS settings of a new connection.
func (c Config) tls(address string) (*tls.Config, error) {
	server := c.ServerName
	if server == "" {
		var err error
		if server, _, err = net.SplitHostPort(address); err != nil {
			return nil, err
		}
	}
	config, err := c.tlsFiles().Config(server)
	if err == nil {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	return config, err
}
