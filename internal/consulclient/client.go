// Package consulclient makes clients of Consul's HTTP API for whoever talks to
// Consul: the source and the fleet.
//
// In goes a Config, out comes HashiCorp's *api.Client on a transport for long
// lives: tokens, certificates and CAs are read anew when their files change,
// dead connections are noticed, thousands of held requests keep their
// connections, and an answer without end is cut off. The package never talks to
// Consul by itself, and never sends a token anywhere but to the configured
// address.
package consulclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// DefaultAddress is where a host's Consul agent answers.
const DefaultAddress = "127.0.0.1:8500"

// MaxAnswer is how many bytes an answer may have. Consul's own largest (a full
// read of a tree's keys, at 512 KiB a value) stay well below.
const MaxAnswer = 256 << 20

// Title names the server in messages: its address.
func (c Config) Title() string {
	if c.Address == "" {
		return DefaultAddress
	}
	return c.Address
}

// How soon a peer that vanished without a word is noticed: about half a minute.
const (
	dialTimeout  = 5 * time.Second
	probeIdle    = 15 * time.Second
	probeEvery   = 5 * time.Second
	probeCount   = 3
	idleConnLife = 90 * time.Second
)

// Client is HashiCorp's, and can also hand over an answer unread.
type Client struct {
	*api.Client
	http   *http.Client
	base   url.URL
	params url.Values // of every question
}

// New returns a client, and what ends the connections that it keeps open. It
// does not connect: with a server that is away, or a token file that is not
// there yet, requests fail until it is. The error names a part of the
// configuration that can't be right.
func New(c Config) (client *Client, closeIdle func(), err error) {
	scheme, host, socket, err := split(c.Title())
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{
		// Each held request has its connection with HTTP/1.1. What it answers is
		// asked again at once: closing in between would only churn.
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
		// Consul doesn't redirect, and our token is not for others.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	theirs, err := api.NewClient(&api.Config{Address: host, Scheme: scheme, Datacenter: c.Datacenter, Namespace: c.Namespace, Partition: c.Partition,
		// The transport puts the right one in its place. With none, HashiCorp's
		// client looks for one in the environment, and fails if its file is missing.
		Token:     "unused",
		Transport: transport, HttpClient: asker})
	if err != nil {
		return nil, nil, fmt.Errorf("consul at %s: %w", c.Title(), err)
	}
	client = &Client{Client: theirs, http: asker, base: url.URL{Scheme: scheme}, params: url.Values{}}
	at := strings.Index(host+"/", "/")
	client.base.Host, client.base.Path = host[:at], host[at:]
	for name, value := range map[string]string{"dc": c.Datacenter, "ns": c.Namespace, "partition": c.Partition} {
		if value != "" {
			client.params.Set(name, value)
		}
	}
	return client, transport.CloseIdleConnections, nil
}

// split takes an address apart. For a socket the host is only a word to put into
// requests.
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

// tls is made for each connection, so that files may change.
func (c Config) tls(address string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, NextProtos: []string{"h2", "http/1.1"}}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		config.ServerName = host
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM form", c.CAFile)
		}
	}
	if c.CertFile != "" || c.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
