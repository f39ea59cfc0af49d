// Package proxyproto reads and writes the headers of the PROXY protocol, versions 1 and 2. A balancer
// sends this header at the beginning of a connection and thereby states the addresses of the client's
// own connection. The specification is HAProxy's doc/proxy-protocol.txt.
//
// Parse and Append are pure. Read takes a header from a socket and leaves every byte after the header
// in the kernel, so that the rest of the connection can be spliced.
package proxyproto
