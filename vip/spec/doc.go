// Package spec defines the form in which people write a service: one struct for TOML and JSON, and
// one table of its fields, with their types, bounds, defaults and documentation.
//
// Its input is a service as written. Build returns a vip.Service with every default filled in, or
// all problems at once, each with its field ("ports[0].port") and a hint. FromService is the inverse.
// The package uses the standard library only and does no I/O.
package spec
