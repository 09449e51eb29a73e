package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Where the broker is, and how the client comes in, as its environment has it
// (conformance/security.py).
func address() []kgo.Opt {
	options := []kgo.Opt{kgo.SeedBrokers(bootstrap)}
	if os.Getenv("SECURITY_PROTOCOL") == "" {
		return options
	}
	options = append(options, kgo.DialTLSConfig(encryption()))
	if mechanism := login(); mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return options
}

func encryption() *tls.Config {
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(must(os.ReadFile(os.Getenv("SSL_CA"))))
	config := &tls.Config{RootCAs: trusted}
	if own := os.Getenv("SSL_CERTIFICATE"); own != "" {
		config.Certificates = []tls.Certificate{must(tls.LoadX509KeyPair(own, own))}
	}
	return config
}

func login() sasl.Mechanism {
	user, password := os.Getenv("SASL_USERNAME"), os.Getenv("SASL_PASSWORD")
	switch os.Getenv("SASL_MECHANISM") {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Oauth(token)
	}
	return nil
}

func token(ctx context.Context) (oauth.Auth, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("TOKEN_ENDPOINT"),
		strings.NewReader(form.Encode()))
	if err != nil {
		return oauth.Auth{}, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.SetBasicAuth(os.Getenv("SASL_USERNAME"), os.Getenv("SASL_PASSWORD"))
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return oauth.Auth{}, err
	}
	defer reply.Body.Close()
	var given struct {
		Token string `json:"access_token"`
	}
	err = json.NewDecoder(reply.Body).Decode(&given)
	return oauth.Auth{Token: given.Token}, err
}

func must[T any](found T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return found
}
