//! TLS of the Postgres port.

use std::{path::PathBuf, sync::Arc};

use datafusion_postgres::pgwire::tokio::{
    TlsAcceptor,
    tokio_rustls::rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    },
};

pub(super) type Acceptor = TlsAcceptor;

/// Where certificate and key are, both as PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, and those that lead to its root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that cannot be read or is not PEM.
    #[error("{}: {source}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// A file without a certificate.
    #[error("{}: there is no certificate in it", .0.display())]
    Empty(PathBuf),
    /// Certificate and key do not fit.
    #[error("certificate {}, key {}: {source}", files.certificate.display(), files.key.display())]
    Pair {
        /// Which.
        files: TlsFiles,
        /// Why.
        source: rustls::Error,
    },
}

impl TlsFiles {
    pub(super) fn acceptor(&self) -> Result<Acceptor, TlsError> {
        let file = |file: &PathBuf| {
            let file = file.clone();
            move |source| TlsError::File { file, source }
        };
        let certificates = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(file(&self.certificate))?;
        if certificates.is_empty() {
            return Err(TlsError::Empty(self.certificate.clone()));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(file(&self.key))?;
        let pair = |source| TlsError::Pair { files: self.clone(), source };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(pair)?;
        // Clients that begin with TLS at once ask for the protocol by this name.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
